"""Request traces: prompts by the hash ids of their blocks, read from files, made up, recorded.

A format is a module with ``Params``, a dataclass that extends ``TraceParams``, and
``read(params)``, which yields each ``Request`` in order of arrival; its name stands in ``TRACES``
and its settings in a YAML file of the group ``trace``.
"""

from composer.traces.reader import read_requests
from composer.traces.recorder import TraceRecorder
from composer.traces.request import FileParams, Request, TraceParams

__all__ = ["FileParams", "Request", "TraceParams", "TraceRecorder", "read_requests"]
