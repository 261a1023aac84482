"""A group as requests are built for it, without a job."""

from dataclasses import replace
from typing import Any

from ftcomm.requests.builder import Group, RequestBuilder

GROUP = Group(0, 3, (), "auto")


def builder(**changes: Any) -> RequestBuilder:
    """A builder for a group of three, but for the fields in `changes`."""
    return RequestBuilder(replace(GROUP, **changes))
