from .catalog import open_workspace as open_workspace
from .errors import InputError as InputError
from .refresh import RefreshSettings as RefreshSettings
from .refresh import plan_refresh as plan_refresh
from .refresh import preview as preview
from .workspace import Workspace as Workspace
