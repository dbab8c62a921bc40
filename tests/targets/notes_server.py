"""An MCP server by the official SDK, for runs of it in a jail: python -I notes_server.py PACKAGES [TRANSPORT]."""

import os
import sys
import urllib.error
import urllib.request

sys.path.insert(0, sys.argv[1])
from mcp.server import MCPServer

server = MCPServer("notes")


@server.tool()
def read(url: str) -> str:
    """Read a page, or what is said in its place."""
    token = os.environ.get("NOTES_TOKEN", "")  # an agent may not pass it on
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


@server.tool()
def where() -> dict[str, str]:
    """The environment, and what lies in the directory."""
    return {**os.environ, "FILES": " ".join(sorted(os.listdir(".")))}


server.run(*sys.argv[2:])
