"""Administration over HTTP: Pulsar's admin REST v2, `/geo/v1`, metrics and the status page.

`make_app` is imported when it is called: the command line uses `admin.client` and must not pay for a web server.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import web

    from magnetar.broker.admin.controller import Controller
    from magnetar.broker.admin.info import BrokerInfo
    from magnetar.metadata.resources import Resources


def make_app(control: "Controller", resources: "Resources", info: "BrokerInfo", **options: Any) -> "web.Application":
    """The web application of one broker; see `admin.http.server.make_app`."""
    from magnetar.admin.http.server import make_app as make

    return make(control, resources, info, **options)
