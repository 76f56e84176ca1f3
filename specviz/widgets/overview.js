// The player's timeline: all cycles at a glance, a scrubber, and a range of cycles to zoom into.
// Precedes player.js.

const COLUMNS = 600; // maximum number of columns drawn
const LEAST = 8; // cycles that the timeline shows at maximum zoom
const STILL = 4; // pixels that the pointer may move during a click

class Overview {
	constructor(record, seek) {
		this.record = record;
		this.sent = s("path.sent"), this.kept = s("path.kept");
		this.borders = s("path.borders"); // borders between updates
		this.svg = s("svg", { preserveAspectRatio: "none", "aria-hidden": "true" }, this.sent, this.kept, this.borders);
		this.cursor = h("i.cursor");
		this.range = h("input", { type: "range", min: "0", step: "1", "aria-label": "cycle" });
		hear(this.range, "input", () => seek(+this.range.value));
		this.node = h("div.overview", { title: "each cycle: tokens drafted (light), tokens written (dark)" }, this.svg, h("div.over", this.cursor), this.range);
		this.out = press("−", "zoom out of the timeline (−)", () => this.zoom(0.5));
		this.in = press("+", "zoom into the timeline (+)", () => this.zoom(2));
		this.all = press("all", "all cycles on the timeline (0)", () => this.zoom(0));
		this.tools = h("span.group.zooms", { role: "group", "aria-label": "time line" }, this.out, this.in, this.all);
		this.pointer(seek);
	}
	// The wheel pans a zoomed timeline, and zooms with Ctrl or a pinch; dragging pans it, and a click jumps there.
	pointer(seek) {
		let held = null;
		const at = (event) => { const box = this.svg.getBoundingClientRect(); return this.from + (this.span * (event.clientX - box.left)) / box.width; };
		this.node.addEventListener("wheel", (event) => {
			const zooming = event.ctrlKey || event.metaKey;
			if (!zooming && this.span === this.n) return; // let the page scroll
			event.preventDefault();
			if (zooming) this.zoom(event.deltaY < 0 ? 1.25 : 0.8, at(event));
			else this.pan(((event.deltaX || event.deltaY) * this.span) / this.svg.clientWidth);
		}, { passive: false });
		hear(this.node, "pointerdown", (event) => {
			if (this.span === this.n || event.button) return;
			held = { x: event.clientX, from: this.from, moved: false };
			this.node.setPointerCapture(event.pointerId);
		});
		hear(this.node, "pointermove", (event) => {
			if (!held) return;
			held.moved ||= Math.abs(event.clientX - held.x) > STILL;
			if (held.moved) this.window(held.from - ((event.clientX - held.x) * this.span) / this.svg.clientWidth, this.span);
		});
		hear(this.node, "pointerup", (event) => {
			if (held && !held.moved) seek(Math.floor(Math.min(this.n - 1, Math.max(0, at(event)))));
			held = null;
		});
		hear(this.node, "pointercancel", () => { held = null; });
	}
	open(first, last, updates) {
		Object.assign(this, { first, updates, n: last - first, i: 0 });
		this.range.max = this.n - 1;
		this.window(0, this.n);
	}
	// Zooms by a factor (0: all the way out) around a cycle.
	zoom(factor, around = this.i + 0.5) {
		const span = factor ? Math.round(Math.max(Math.min(LEAST, this.n), Math.min(this.n, this.span / factor))) : this.n;
		this.window(around - ((around - this.from) * span) / this.span, span);
	}
	pan(cycles) { this.window(this.from + cycles, this.span); }
	// Draws the cycles from one on; if there are many, each column shows the maximum of its cycles.
	window(from, span) {
		const { a } = this.record, { n, first } = this;
		this.span = span;
		this.from = Math.max(0, Math.min(n - span, from));
		const begin = Math.floor(this.from), end = Math.min(n, Math.ceil(this.from + span)), many = end - begin, columns = Math.min(many, COLUMNS);
		const heights = (at) => {
			const found = new Array(columns).fill(0);
			for (let i = 0; i < many; i++) {
				const k = Math.floor((i * columns) / many), row = first + begin + i;
				found[k] = Math.max(found[k], at[row + 1] - at[row]);
			}
			return found;
		};
		const drafted = heights(a.node_at), written = heights(a.out_at);
		if (span === n) this.most = Math.max(1, ...drafted, ...written);
		const area = (list) => `M0 100${list.map((y) => `V${(100 - (96 * y) / this.most).toFixed(1)}h1`).join("")}V100Z`;
		const scale = columns / many;
		set(this.svg, { viewBox: `${((this.from - begin) * scale).toFixed(3)} 0 ${(span * scale).toFixed(3)} 100` });
		set(this.sent, { d: area(drafted) });
		set(this.kept, { d: area(written) });
		set(this.borders, { d: this.updates.slice(1).map((u) => `M${(u.first - first - begin) * scale} 0V100`).join("") });
		this.node.classList.toggle("zoomed", span < n);
		this.out.disabled = this.all.disabled = span === n;
		this.in.disabled = span <= LEAST;
		if (this.tools.contains(document.activeElement)) keepFocus(this.tools.closest(".sv"));
		this.place();
	}
	place() {
		const at = (100 * (this.i - this.from)) / this.span;
		this.cursor.hidden = at < 0 || at >= 100;
		this.cursor.style.width = `max(4px, ${100 / this.span}%)`;
		this.cursor.style.left = `min(${at}%, 100% - 4px)`;
	}
	draw(i, said) {
		this.i = i;
		if (i < this.from || i + 1 > this.from + this.span) this.window(i - this.span / 2, this.span); // keep the current cycle in view
		else this.place();
		this.range.value = i;
		this.range.setAttribute("aria-valuetext", said);
	}
}
