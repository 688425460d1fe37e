from .charts import write_charts as write_charts
from .figure import figure_section as figure_section
from .report import Report as Report
from .report import made_by as made_by
from .report import write_page as write_page
from .results import Result as Result
from .section import Label as Label
from .section import Section as Section
