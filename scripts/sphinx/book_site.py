"""What Jupyter Book does not do by itself: pages that name no other host's scripts."""


def drop_thebe(app, pagename, templatename, context, doctree):
    """Leave out Thebe, which is switched off but whose loader would name another host on every page."""
    context["script_files"] = [script for script in context["script_files"] if not is_thebe(script)]


def is_thebe(script):
    """Say whether a page's script belongs to Thebe: its file, or the lines that say where to fetch it."""
    inline = (getattr(script, "attributes", None) or {}).get("body") or ""
    return "sphinx-thebe" in str(getattr(script, "filename", script)) or "THEBE_JS_URL" in inline


def setup(app):
    """Tell Sphinx about the step above; it runs after Thebe has added its scripts."""
    app.connect("html-page-context", drop_thebe, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
