// Search in the player: the next rejection, the next long wait, a token's text. Precedes player.js.

class Finder {
	// `here()` returns {prompt, row}; `go(row, node)` shows a cycle and selects a node unless it is null.
	constructor(record, here, go) {
		Object.assign(this, { record, here, go });
		this.box = h("input", { type: "search", placeholder: "find a token", "aria-label": "find a token's text (/)", title: "find a token's text (/); Enter goes on, Shift+Enter back" });
		this.told = h("output.soft", { "aria-live": "polite" });
		hear(this.box, "keydown", (event) => {
			if (event.key === "Enter") { event.preventDefault(); this.text(event.shiftKey ? -1 : 1); }
			if (event.key === "Escape") this.box.closest(".sv").focus(STAY);
		});
		hear(this.box, "input", () => { this.told.textContent = ""; });
		this.node = h("span.find", { role: "search" }, this.box,
			press("✕ next", "the next rejection (X)", () => this.rejection(1), { "aria-label": "the next rejection (X)" }),
			press("◷ next", "the next long wait (W): one of the slowest 5 % of cycles", () => this.wait(1), { "aria-label": "the next long wait (W)" }), this.told);
	}
	// Finds the next matching row, wrapping around the prompt; `test(row)` returns a node, null for the cycle, or undefined.
	next(way, none, test) {
		const { prompt, row } = this.here(), n = prompt.last - prompt.first;
		for (let i = 1; i <= n; i++) {
			const at = prompt.first + ((((row - prompt.first + way * i) % n) + n) % n), node = test(at);
			if (node === undefined) continue;
			this.told.textContent = "";
			this.go(at, node);
			return;
		}
		this.told.textContent = none;
	}
	rejection(way) {
		this.next(way, "nothing was rejected in this text", (row) => { const { rejected } = this.record.cycle(row); return rejected < 0 ? undefined : rejected; });
	}
	wait(way) {
		const { prompt } = this.here(), slow = [];
		for (let row = prompt.first; row < prompt.last; row++) if (!this.record.cycle(row).prefill) slow.push([row, this.record.duration(row)]);
		slow.sort((x, y) => y[1] - x[1]);
		const rows = new Set(slow.filter(([, seconds]) => seconds > 0).slice(0, Math.max(3, Math.ceil(slow.length / 20))).map(([row]) => row));
		this.next(way, "no times were recorded", (row) => (rows.has(row) ? null : undefined));
	}
	// Finds a drafted token whose text contains the query, or the query in the text starting at this cycle.
	text(way) {
		const words = this.box.value.toLowerCase(), { prompt } = this.here(), { a } = this.record;
		if (!words) return;
		const has = new Map(), starts = [];
		const holds = (token) => { if (!has.has(token)) has.set(token, this.record.text(token).toLowerCase().includes(words)); return has.get(token); };
		let all = "";
		for (let o = a.out_at[prompt.first]; o < a.out_at[prompt.last]; o++) { starts.push(all.length); all += this.record.outText(o).toLowerCase(); }
		starts.push(all.length);
		const place = (o) => starts[o - a.out_at[prompt.first]];
		this.next(way, "no token has this text", (row) => {
			for (let i = a.node_at[row]; i < a.node_at[row + 1]; i++) if (holds(a.node_token[i])) return i - a.node_at[row];
			const from = place(a.out_at[row]), to = place(a.out_at[row + 1]);
			const at = from < to ? all.indexOf(words, from) : -1;
			return at >= 0 && at < to ? null : undefined;
		});
	}
}
