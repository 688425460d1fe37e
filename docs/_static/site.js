// A page on a disk may not read its neighbours: its search lists titles, without a line of each page.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
