"""What Jupyter Book does not do by itself: pages that name no other host's scripts, links to pages in _static."""

from docutils import nodes
from sphinx import addnodes


def drop_thebe(app, pagename, templatename, context, doctree):
    """Leave out Thebe, which is switched off but whose loader would name another host on every page."""
    context["script_files"] = [script for script in context["script_files"] if not is_thebe(script)]


def is_thebe(script):
    """Say whether a page's script belongs to Thebe: its file, or the lines that say where to fetch it."""
    inline = (getattr(script, "attributes", None) or {}).get("body") or ""
    return "sphinx-thebe" in str(getattr(script, "filename", script)) or "THEBE_JS_URL" in inline


def link_static_pages(app, doctree):
    """Let a link to book/_static/x.html open it where it stands in the built book.

    In the repository and in Jupyter such a link works as it is. Sphinx would copy the file elsewhere, to be downloaded,
    away from its style sheet and script.
    """
    for link in list(doctree.findall(addnodes.download_reference)):
        _, is_static, name = link["reftarget"].rpartition("_static/")
        if is_static and name.endswith(".html"):
            to_root = "../" * app.env.docname.count("/")
            link.replace_self(nodes.reference("", "", *link.children, refuri=f"{to_root}_static/{name}", internal=True))


def setup(app):
    """Tell Sphinx about the steps above: after Thebe has added its scripts, before files to download are collected."""
    app.connect("html-page-context", drop_thebe, priority=900)
    app.connect("doctree-read", link_static_pages, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
