"""Advice before a deployment: which method, drafter and size pay for these texts on this device, if any does.

The target writes its own text once, or a file brings it. Target and drafters read that text once. What every
setting would have done with it then follows by arithmetic, and what it would cost from passes that are timed
for about a minute. `specviz.advise` joins the parts:

- `readings`: what target and drafters say at every place of a text
- `simulation`: the cycles of every setting; `grown`: those of EAGLE's trees, which the method grows itself;
  `stores`: those of methods that learn as they go, which decode
- `prices`: what passes and cycles cost on this device; `devices`: on another one, by a roofline
- `ranking`: predicted speeds with their intervals, and what would change the order
- `engines`: the same settings in the words of other engines
- `result`: the advice as text, as a page and as data
"""
