"""Interactive anywidget views of a trace: each has a Python file, an ES module and a style sheet.

The front-end is plain JavaScript without a bundler, a CDN or network requests. Code shared by all views
(decoding the columns, building elements, themes, the help overlay) is in `shared.js` and `shared.css`, which
`assets` prepends to each view's own source. `page` writes the same player as one offline file, which does
not need anywidget.
"""
