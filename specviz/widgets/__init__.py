"""Looking that answers back: anywidget views of a trace, each a Python file, an ES module and a style sheet.

The front-end is plain JavaScript without a bundler, a CDN or a request. What all views share (decoding the
columns, building elements, themes, the help overlay) is `shared.js` and `shared.css`, put in front of each
view's own text by `assets`. `page` writes the same player as one offline file, which needs no anywidget.
"""
