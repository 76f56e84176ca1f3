// Text that grows while it is decoded: each token marked by how it came about, with dropped drafts struck out.
// Cycles arrive as returned by `Writing.cycle` (feed.py). Built on shared.js, which precedes this file.

const SAY = 1000; // ms between two announcements to a screen reader
const perSecond = (n) => (n >= 100 ? n.toFixed(0) : n.toFixed(1));

class Growing {
	constructor(kinds, label) {
		this.kinds = kinds;
		this.body = h("span");
		this.node = h("div.growing", { dir: "auto", tabindex: "0", role: "group", "aria-label": label }, this.body);
		this.clear();
	}
	clear() {
		this.body.replaceChildren();
		this.standing = []; // nodes of the tokens in the text, in order
		this.cells = new Map(); // on a canvas: cell -> node
		this.fresh = [];
		this.used = new Set(); // kinds that occurred
		Object.assign(this, { received: 0, dropped: 0, cycles: 0, seconds: 0, prefill: null, heard: "" });
	}
	get tokens() { return this.cells.size || this.standing.length; }
	get speed() { const s = this.seconds - (this.prefill ?? 0); return s > 0 && this.prefill !== null ? this.tokens / s : 0; }
	add(cycles) {
		const low = this.node.scrollHeight - this.node.scrollTop - this.node.clientHeight < 30; // whether the reader is at the end
		for (const node of this.fresh) node.classList.remove("new");
		this.fresh = [];
		for (const cycle of cycles) this.cycle(cycle);
		this.received += cycles.length;
		for (const node of this.fresh) node.classList.add("new");
		if (low) this.node.scrollTop = 1e9;
	}
	cycle({ cycle, keep, tokens, dropped, cells, seconds }) {
		this.seconds = seconds;
		if (cycle === 0) { this.prefill = seconds; return; }
		this.cycles = cycle;
		if (cells.length) { tokens.forEach((token, i) => this.place(cells[i], token, cycle)); return; }
		for (const node of this.standing.splice(keep)) this.strike(node, cycle);
		// dropped tokens appear before the token that the target wrote instead
		const own = tokens.findIndex(([, kind]) => !["draft", "unreviewed"].includes(this.kinds[kind].name));
		tokens.forEach((token, i) => {
			if (i === own && dropped) this.drop(dropped, cycle);
			const node = this.token(token, cycle);
			this.standing.push(node);
			this.body.append(node);
			this.heard += token[0];
		});
		if (own < 0 && dropped) this.drop(dropped, cycle);
	}
	token([text, kind], cycle) {
		const { name, word, meaning, mark } = this.kinds[kind];
		this.used.add(kind);
		const bare = text.replace(/^ /, ""), space = bare === text ? "" : " ";
		const node = h("span", { class: `t ${name}`, title: `${word}: ${meaning}; cycle ${cycle}` }, space, mark && text ? h("sup", mark) : "", ...withSigns(bare));
		this.fresh.push(node);
		return node;
	}
	place(cell, token, cycle) { // a canvas is filled in any order
		const node = this.token(token, cycle);
		const after = [...this.cells.keys()].filter((other) => other > cell).sort((a, b) => a - b)[0];
		this.cells.get(cell)?.remove();
		this.body.insertBefore(node, after === undefined ? null : this.cells.get(after));
		this.cells.set(cell, node);
	}
	drop(text, cycle) {
		this.dropped++;
		this.body.append(h("del", { title: `drafted in cycle ${cycle} and not accepted` }, ...withSigns(text, false)));
	}
	strike(node, cycle) { // a later cycle rolled it back
		this.dropped++;
		node.replaceWith(h("del", { title: `erased in cycle ${cycle}` }, node.textContent.replace(/\n/g, "")));
	}
	legend() {
		const kinds = [...this.used].sort((a, b) => a - b).map((k) => this.kinds[k]);
		return [...kinds.map((k) => h("span", { title: k.meaning }, h("span", { class: `t ${k.name}` }, k.mark ? h("sup", k.mark) : "", k.word))),
			this.dropped ? h("span", { title: "drafted but not accepted or not judged" }, h("del", "dropped draft")) : ""].filter(Boolean);
	}
}

// Makes at most one announcement a second to a screen reader: later messages are joined into the next one; of those that
// replace each other (`newest`), only the last is kept.
class Announcer {
	constructor() { this.node = h("p.unseen", { "aria-live": "polite" }); this.words = this.newest = ""; this.timer = 0; }
	say(words, newest = "") {
		this.words = this.words && words ? `${this.words} ${words}` : this.words || words;
		this.newest = newest || this.newest;
		if (!this.timer) this.utter();
	}
	utter() {
		const words = this.words.length > 240 ? `… ${this.words.slice(-240)}` : this.words;
		this.timer = 0;
		if (!words && !this.newest) return;
		this.node.textContent = [words, this.newest].filter(Boolean).join(" ");
		this.words = this.newest = "";
		this.timer = setTimeout(() => this.utter(), SAY); // an interval would catch up after a late tick
	}
	stop() { clearTimeout(this.timer); this.timer = 0; }
}

// The prompt box.
function promptBox(model, go) {
	const box = h("textarea", { rows: 2, dir: "auto", spellcheck: "false", "aria-label": "prompt", placeholder: "Type a prompt … (Ctrl Enter decodes it)" });
	hear(box, "change", () => share(model, { prompt: box.value }));
	hear(box, "keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.isComposing) { event.preventDefault(); event.stopPropagation(); go(); } });
	const put = () => { if (document.activeElement !== box || !box.value) box.value = model.get("prompt"); };
	put();
	return { box, put };
}

// A menu of names; put() reads `values` and `value` again.
function menu(label, values, value, chosen) {
	const select = h("select", { "aria-label": label });
	hear(select, "change", () => chosen(select.value));
	const put = () => {
		const own = values(), now = value();
		select.replaceChildren(...own.map((each) => h("option", { value: each }, each)));
		select.value = now;
	};
	put();
	return { node: h("label.pick", `${label} `, select), select, put };
}
