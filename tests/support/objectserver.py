"""A program: moto's server of the S3 protocol on a port of loopback, and of nothing else.

moto's own command looks for each request through all services that it has, which is half of what a
request takes (observed with 5.2).
"""

from __future__ import annotations

import sys

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

run_simple(
    "127.0.0.1",
    int(sys.argv[1]),
    create_backend_app("s3"),
    threaded=True,
    request_handler=MotoRequestHandler,
)
