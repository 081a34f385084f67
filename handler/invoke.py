"""The direct invoke: a JSON payload in, a proxy answer out; the same shape for success and for errors.

    {"image": "<base64>", "task": "page", "format": "md", …}
        → {"statusCode": 200, "headers": {"content-type": "text/markdown; charset=utf-8", …}, "body": "# …",
           "isBase64Encoded": false}

`body` is as over HTTP: Markdown, the JSON of a result, a picture in base64 (`isBase64Encoded`), or a problem (RFC 9457)
when `statusCode` is 400 or more.
"""

from __future__ import annotations

import time
from typing import Any

from handler import answer, logs
from handler import request as requests
from handler.errors import MineruError
from handler.runtime import Runtime, deadline_s


def invoke(event: dict[str, Any], context: Any, runtime: Runtime, request_id: str) -> dict[str, Any]:
    """Parse the document of a payload; errors that are raised on purpose become answers."""
    record: dict[str, Any] = {"level": "INFO", "request_id": request_id, "event": "invoke"}
    begun = time.perf_counter()
    try:
        asked = requests.from_json(event, runtime.settings.max_document_bytes)
        result = runtime.run(asked, deadline_s=deadline_s(context))
        record.update(logs.facts(asked, result))
        rendered = answer.render(result, asked.format or "json", asked, runtime.settings)
        response = answer.proxy(200, *rendered, request_id)
    except MineruError as exc:
        if exc.status >= 500:
            logs.error(exc, request_id)
        record["error"] = exc.code
        response = answer.proxy_problem(exc, request_id)
    record["status"] = response["statusCode"]
    logs.finish(record, begun)
    return response
