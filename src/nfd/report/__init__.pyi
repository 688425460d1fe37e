from .charts import write_charts as write_charts
from .overview import Result as Result
from .page import Label as Label
from .page import Report as Report
from .page import Section as Section
from .page import figure_section as figure_section
from .page import made_by as made_by
from .page import write_page as write_page
