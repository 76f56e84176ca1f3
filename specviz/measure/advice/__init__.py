"""Advice before deployment: which method, drafter and draft size pay for given texts on a device, if any.

The target writes its texts once, or a file supplies them. The target and the drafters read each text once.
The cycles of every setting then follow by arithmetic, and their cost follows from passes that are timed for
about a minute. `specviz.advise` joins the parts:

- `readings`: predictions of the target and the drafters at every position of a text
- `simulation`: the cycles of every setting; `grown`: those of EAGLE's trees, drafted by the method itself;
  `stores`: those of methods that learn while decoding, which must decode
- `prices`: cost of passes and cycles on this device; `devices`: on another one, by a roofline
- `ranking`: predicted speeds with their intervals, and conditions that would change the order
- `engines`: the same settings as options of other engines
- `result`: the advice as text, as a page and as data
"""
