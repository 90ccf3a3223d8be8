"""Who fulfils `kit_jupyter.tool`: Python, shell, files, the web, MCP, sub-agents."""
