// Code shared by all views. This file precedes each view's own module.

// Builds an element: h("button.x", { title: "y" }, child, "text" ...), `x` being its class; attributes are optional. Text
// always becomes a text node.
function build(make, tag, [first, ...rest]) {
	const [name, ...classes] = tag.split("."), node = make(name);
	const plain = first?.constructor === Object;
	if (classes.length) node.setAttribute("class", classes.join(" "));
	if (plain) for (const key in first) if (first[key] !== null) put(node, key, first[key]);
	if (!plain && first !== undefined) rest.unshift(first);
	node.append(...rest.filter((child) => child !== ""));
	return node;
}
// Sets an attribute; a style goes through the CSSOM, because an offline page's content policy forbids style attributes.
function put(node, name, value) {
	if (name === "style") node.style.cssText = value ?? "";
	else if (value === null) node.removeAttribute(name);
	else node.setAttribute(name, value);
}
const h = (tag, ...rest) => build((name) => document.createElement(name), tag, rest);
const s = (tag, ...rest) => build((name) => document.createElementNS("http://www.w3.org/2000/svg", name), tag, rest);

const hear = (node, what, act) => node.addEventListener(what, act);
const emOf = (node) => parseFloat(getComputedStyle(node).fontSize) || 14; // pixels

// A lane: its heading, remarks in its header, and its content.
const lane = (name, title, said, ...rest) => h("section", { class: name }, h("header", h("h3", title), ...said), ...rest);
// A button with a word or an icon on it.
function press(sign, title, act, more = {}) {
	const node = h("button", { type: "button", title, "aria-label": title, ...more }, sign);
	hear(node, "click", act);
	return node;
}
// A badge for how certain it is that a text is the target's own.
const SURE = {
	exact: "the text is the target's own",
	"exact up to ties": "the text is the target's own, but two top tokens whose scores differ only by rounding may swap",
	"exact in law": "sampled from the target's own distribution, though it is not the text that plain decoding draws",
	lossy: "the text may differ from the target's own",
};
const exactness = (word, more = {}) => h("span", { title: SURE[word] ?? "whether the text is the target's own", class: `badge ${{ exact: "yes", "exact up to ties": "ties", "exact in law": "ties" }[word] ?? "lossy"}`, ...more }, word || "not stated");
// Makes line breaks and runs of spaces visible. Dropped text (`breaks` false) does not break the line that remains.
const withSigns = (text, breaks = true) => text.split(/(\n|^ +$| {2,})/).filter(Boolean).flatMap((part) =>
	part === "\n" ? [h("i.sign", "⏎"), breaks ? "\n" : ""] : /^ +$/.test(part) ? h("i.sign", "␣".repeat(part.length)) : part);
// Sets traits and sends them to Python: {trait: value}.
function share(model, values) {
	for (const name in values) model.set(name, values[name]);
	model.save_changes();
}
const unique = () => `u${Math.random().toString(36).slice(2)}`;
const button = (word, title, act, more) => press(word, title, act, { "aria-label": null, ...more }); // its text is its name
const ENGLISH = new Intl.NumberFormat("en");
const grouped = (n) => ENGLISH.format(n);
const count = (n, word) => `${grouped(n)} ${word}${n === 1 ? "" : "s"}`;
const ms = (s) => (s >= 1 ? `${s.toFixed(2)} s` : `${(s * 1e3).toFixed(s < 0.01 ? 2 : s < 0.1 ? 1 : 0)} ms`);

const pressed = (button, on) => button.setAttribute("aria-pressed", String(on));
const STAY = { preventScroll: true };
// Moves the focus away from an element that was just hidden or disabled: its keys would be lost.
function keepFocus(root, to = root) {
	const held = document.activeElement;
	if (held !== root && root.contains(held) && (held.disabled || !held.getClientRects().length)) to.focus(STAY);
}

// Icons are drawn, because a font may lack the characters.
const ICONS = {
	first: "M3 3h2v10H3zM13 3v10L6 8z", back: "M11 3v10L4 8z", play: "M4 2.5v11L13 8z", pause: "M4 3h3v10H4zM9 3h3v10H9z",
	on: "M5 3v10l7-5z", last: "M11 3h2v10h-2zM3 3v10l7-5z", large: "M2 2h5v2H4v3H2zM9 2h5v5h-2V4H9zM2 9h2v3h3v2H2zM12 9h2v5H9v-2h3z",
};
const icon = (name) => s("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }, s("path", { d: ICONS[name] }));
// Shows on a play button what it does next.
function playSign(node, playing) {
	node.replaceChildren(icon(playing ? "pause" : "play"));
	for (const name of ["title", "aria-label"]) put(node, name, `${playing ? "pause" : "play"} (space)`);
}

// Header and arrays of `pack` (columns.py): a length, a JSON header, arrays aligned to 8 bytes.
const TYPES = { u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array, i8: BigInt64Array, f4: Float32Array, f8: Float64Array };
function unpack(data) {
	let bytes = ArrayBuffer.isView(data) ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : new Uint8Array(data);
	if (bytes.byteOffset % 8) bytes = bytes.slice();
	const length = new DataView(bytes.buffer, bytes.byteOffset, 4).getUint32(0, true);
	const told = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
	const arrays = {};
	for (const [name, [kind, place, count, same]] of Object.entries(told.arrays)) {
		const kept = new TYPES[kind](bytes.buffer, bytes.byteOffset + 4 + length + place, same ? 1 : count);
		arrays[name] = same ? new TYPES[kind](count).fill(kept[0]) : kept;
	}
	return { header: told.header, arrays };
}

// A token's text in its own box, with spaces and line breaks made visible and invisible characters spelled out.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const SHOWN = new Map(); // cache: the same few tokens recur
function shownToken(text) {
	let shown = SHOWN.get(text);
	if (shown === undefined) {
		shown = text.replace(UNSEEN, (c) => `⟨U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`)
			.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣");
		if (SHOWN.size > 20000) SHOWN.clear();
		SHOWN.set(text, shown);
	}
	return shown;
}

// Whether the reader prefers reduced motion.
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches || document.body.classList.contains("vscode-reduce-motion");

// Applies light or dark to the root: the trait `theme`, else that of the notebook, VS Code or the system. Returns an undo.
function followTheme(root, model) {
	const query = matchMedia("(prefers-color-scheme: dark)");
	const tell = () => {
		const wish = model.get("theme");
		const { dataset, className } = document.body;
		const code = /vscode-(dark|light|high-contrast)/.test(className); // VS Code also defines the light CSS variables of JupyterLab
		const host = "jpThemeLight" in dataset ? (dataset.jpThemeLight === "false" ? "dark" : "light")
			: code ? (/vscode-(high-contrast-)?light/.test(className) ? "light" : "dark")
			: query.matches ? "dark" : "light";
		const own = wish === "light" || wish === "dark"; // whether the theme overrides the host colours
		root.classList.toggle("own", own);
		root.classList.toggle("vscode", code && !own);
		root.classList.toggle("contrast", !own && /vscode-high-contrast/.test(className));
		root.classList.toggle("dark", (own ? wish : host) === "dark");
	};
	tell();
	const observer = new MutationObserver(tell);
	observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
	hear(query, "change", tell);
	model.on("change:theme", tell);
	return () => {
		observer.disconnect();
		query.removeEventListener("change", tell);
		model.off("change:theme", tell);
	};
}

// Subscribes a view to its model's events, [[event, act], ...], and to the theme. Returns an undo.
function listen(root, model, heard) {
	for (const [name, act] of heard) model.on(name, act);
	const untheme = followTheme(root, model);
	return () => {
		untheme();
		for (const [name, act] of heard) model.off(name, act);
	};
}

// Key bindings of a view: `acts(event)` returns {key: act}. No key propagates: the notebook has its own shortcuts.
function keys(root, help, acts) {
	hear(root, "keydown", (event) => {
		event.stopPropagation();
		const { tagName } = event.target;
		if (event.ctrlKey || event.metaKey || event.altKey || tagName === "SELECT" || event.target.type === "search") return;
		if (event.key === "Escape") { help.close(); return; }
		if ((help.open && event.key !== "?") || (event.key === " " && (["BUTTON", "SUMMARY"].includes(tagName) || event.target.type === "checkbox"))) return;
		const act = acts(event)[event.key.length === 1 ? event.key.toLowerCase() : event.key];
		if (!act) return;
		event.preventDefault();
		act();
	});
}

// The data of the widgets that play. Of several views of one, only the first to play advances it.
const PLAYED = globalThis.specvizPlayed ??= new WeakSet();
function claim(data, on) {
	const ours = on && !PLAYED.has(data);
	PLAYED[on ? "add" : "delete"](data);
	return ours;
}

// Downloads a file to the reader's computer.
function download(blob, name) {
	const url = URL.createObjectURL(blob), link = h("a", { href: url, download: name });
	document.body.append(link);
	link.click();
	link.remove();
	setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

// The list of keys as an overlay: [[keys, description], ...]; returns toggle() and close().
function overlay(root, title, keys) {
	const shut = press("✕", "close", () => close());
	const box = h("div.overlay", { role: "dialog", "aria-label": title, tabindex: "-1", hidden: "" },
		h("div.head", h("strong", title), shut),
		h("dl", ...keys.flatMap(([key, what]) => [h("dt", ...key.split(" ").map((k) => h("kbd", k))), h("dd", what)])));
	root.append(box);
	let from = null;
	const close = () => {
		if (box.hidden) return;
		box.hidden = true;
		(from ?? root).focus(STAY);
	};
	const toggle = () => {
		if (!box.hidden) return close();
		from = root.contains(document.activeElement) ? document.activeElement : null;
		box.hidden = false;
		box.scrollIntoView({ block: "nearest" });
		shut.focus(STAY);
	};
	return { toggle, close, get open() { return !box.hidden; } };
}
