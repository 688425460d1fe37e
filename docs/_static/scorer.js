// Pages whose title has more of the words that are asked for come first, and guides before other pages.
const ASKED = (new URLSearchParams(location.search).get("q") || "").toLowerCase().split(/\W+/).filter(Boolean);
var Scorer = {
  score: ([docname, title, , , score]) =>
    score + 5 * ASKED.filter((word) => title.toLowerCase().includes(word)).length + (docname.startsWith("howto/") ? 1 : 0),
  // as Sphinx has them
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
