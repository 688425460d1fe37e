from .charts import write_charts as write_charts
from .overview import Result as Result
from .page import Label as Label
from .page import Section as Section
from .page import figure_section as figure_section
from .report import Report as Report
from .report import made_by as made_by
from .report import write_page as write_page
