"""The documents as a site, for `make docs`."""

project = "steptime"
extensions = ["myst_parser"]
myst_heading_anchors = 4  # links to headings are those that repositories show
suppress_warnings = ["misc.highlighting_failure", "myst.header"]  # languages of ours, a long table
exclude_patterns = ["examples"]
smartquotes = False  # `--` of an option is not a dash
html_theme = "furo"
html_title = "steptime"
html_copy_source = False
html_static_path = ["_static"]
html_js_files = ["site.js"]
html_css_files = ["site.css"]
html_show_copyright = False
