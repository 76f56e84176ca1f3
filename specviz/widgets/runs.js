// A folder's traces as a table: sort, search, filter, open and compare rows. Built on shared.js, which
// precedes this file.

const PART = 512 * 1024; // bytes of a dropped file per message

function render({ model, el }) {
	const root = h("div.sv.runs", { role: "region", "aria-label": "Traces" });
	const search = h("input", { type: "search", placeholder: "any word of a row", "aria-label": "Search the traces" });
	const methods = h("select", { "aria-label": "Method" });
	const told = h("span.soft", { role: "status" });
	const error = h("p.error", { role: "alert", hidden: "" });
	const note = h("p.soft");
	const head = h("tr"), body = h("tbody");
	const file = h("input", { type: "file", multiple: "", accept: ".parquet,.partial", class: "unseen", tabindex: "-1", "aria-hidden": "true" });
	const choose = button("Open a file…", "choose a trace on this computer", () => file.click());
	const progress = h("progress", { max: "1", value: "0", "aria-label": "The file is being read", hidden: "" });
	const drop = h("div.drop", h("span", "Drop a trace here (*.parquet), or "), choose, file, progress,
		h("span.soft", ` At most ${Math.round(model.get("limit") / 2 ** 20)} MiB; it is checked, and kept only if you save it.`));
	let own = []; // errors of this page, in addition to Python's
	const send = (what, rows) => { own = []; tell(); model.send({ do: what, rows }); };
	const numbers = () => [...marked].map((id) => model.get("rows").findIndex((row) => row.id === id)); // rows move when the folder changes
	const differ = button("Differences", "the two selected traces of one prompt, in step", () => send("diff", numbers()));
	const race = button("Race", "the selected traces of the same prompts, against each other", () => send("race", numbers()));
	const unmark = button("", "clear the marks", () => { marked.clear(); draw(); search.focus(); }, { hidden: "" });
	const again = button("Read again", "read the folder again", () => send("refresh", []));
	const marked = new Set();
	let key = "file", down = false;

	const columns = model.get("columns").map(([name, heading, digits, meaning]) => ({ name, heading, digits, meaning }));
	const heads = columns.map((column) => {
		const node = h("th", { scope: "col" });
		node.append(button(column.heading, `sort by ${column.heading}: ${column.meaning}`, () => {
			down = key === column.name ? !down : column.digits !== null;
			key = column.name;
			draw();
		}, { class: "sort" }));
		if (column.digits !== null) node.className = "n";
		return node;
	});
	head.append(h("th", { scope: "col" }, h("span.unseen", "compare")), ...heads);

	const text = (row, column) => {
		const value = row[column.name];
		if (value === null || value === undefined || value === "") return "–";
		return column.digits === null ? String(value) : value.toLocaleString("en", { minimumFractionDigits: column.digits, maximumFractionDigits: column.digits });
	};
	function compare(a, b) {
		if (!!a.problem !== !!b.problem) return a.problem ? 1 : -1; // files that are not traces come last
		const [x, y] = [a[key], b[key]], way = down ? -1 : 1;
		if ((x ?? null) === null || (y ?? null) === null) return ((x ?? null) === null) - ((y ?? null) === null);
		return way * (typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
	}
	function shown() {
		const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
		return model.get("rows").map((row, number) => ({ ...row, number })).filter((row) => {
			const all = `${row.problem} ${columns.map((column) => text(row, column)).join(" ")}`.toLowerCase();
			return (!methods.value || row.method === methods.value) && words.every((word) => all.includes(word));
		}).sort(compare);
	}
	function line(row) {
		const mark = h("input", { type: "checkbox", "aria-label": `compare ${row.file}` });
		mark.checked = marked.has(row.id);
		hear(mark, "change", () => { if (mark.checked) marked.add(row.id); else marked.delete(row.id); enable(); });
		const open = button(row.file, `open ${row.file} in the player`, () => send("open", [row.number]), { class: "open" });
		const keep = row.uploaded ? button("Save", `save ${row.file} into ${model.get("folder")}`, () => send("save", [row.number])) : "";
		if (row.problem) return h("tr.broken", h("td"), h("td", { colspan: String(columns.length) }, h("div.why", h("bdi", row.file), h("bdi.problem", row.problem))));
		const cells = columns.slice(1).map((column) => h(column.digits === null ? "td" : "td.n", column.name === "exactness" ? exactness(row.exactness) : h("bdi", text(row, column))));
		const node = h("tr", { "data-row": row.number }, h("td", mark), h("th", { scope: "row" }, open, keep), ...cells);
		if (model.get("chosen").includes(row.number)) node.setAttribute("aria-current", "true");
		return node;
	}
	function enable() {
		differ.disabled = marked.size !== 2;
		race.disabled = marked.size < 2;
		unmark.hidden = !marked.size;
		unmark.textContent = `${marked.size} marked ✕`;
	}
	function draw() {
		const name = (node) => node.getAttribute("aria-label") ?? node.title, held = body.contains(document.activeElement) && document.activeElement;
		const rows = shown(), all = model.get("rows");
		heads.forEach((node, i) => node.setAttribute("aria-sort", columns[i].name === key ? (down ? "descending" : "ascending") : "none"));
		body.replaceChildren(...rows.map(line));
		told.textContent = rows.length === all.length ? count(all.length, "file") : `${rows.length} of ${count(all.length, "file")}`;
		if (held) ([...body.querySelectorAll("button,input")].find((node) => name(node) === name(held)) ?? body.querySelector(`[data-row="${held.closest("tr").dataset.row}"] .open`))?.focus(STAY);
		enable();
	}
	function reread() {
		const names = [...new Set(model.get("rows").map((row) => row.method).filter(Boolean))].sort(), before = methods.value;
		methods.replaceChildren(h("option", { value: "" }, "every method"), ...names.map((name) => h("option", { value: name }, name)));
		methods.value = names.includes(before) ? before : "";
		const sound = new Set(model.get("rows").filter((row) => !row.problem).map((row) => row.id));
		for (const id of [...marked]) if (!sound.has(id) && !model.get("reading")) marked.delete(id);
		draw();
	}
	function tell() {
		error.textContent = [...own, model.get("error")].filter(Boolean).join("\n");
		error.hidden = !error.textContent;
		note.textContent = model.get("note");
		note.hidden = !model.get("note");
	}
	const answers = []; // callbacks waiting for the answer to a part of a file
	async function upload(one) {
		if (!one) return;
		if (one.size > model.get("limit")) {
			refuse(`${one.name} is larger than ${Math.round(model.get("limit") / 2 ** 20)} MiB: put it into the folder instead.`);
			return;
		}
		progress.hidden = false;
		for (let at = 0; at === 0 || at < one.size; at += PART) {
			const part = await one.slice(at, at + PART).arrayBuffer();
			const answer = new Promise((resolve) => answers.push(resolve));
			model.send({ do: "upload", name: one.name, first: at === 0, last: at + PART >= one.size }, undefined, [part]);
			if ((await answer) === "refused") break;
			progress.value = Math.min(1, (at + PART) / one.size);
		}
		progress.hidden = true;
		progress.value = 0;
		file.value = "";
	}
	let last = Promise.resolve();
	const refuse = (reason) => { own.push(String(reason)); tell(); progress.hidden = true; };
	function uploadAll(files) { // one after the other
		send("clear", []);
		for (const one of files) last = last.then(() => upload(one)).catch(refuse);
	}
	hear(search, "input", draw);
	hear(methods, "change", draw);
	hear(file, "change", () => uploadAll([...file.files]));
	hear(root, "dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
	hear(root, "dragleave", (event) => { if (!root.contains(event.relatedTarget)) drop.classList.remove("over"); });
	hear(root, "drop", (event) => {
		event.preventDefault();
		drop.classList.remove("over");
		uploadAll([...event.dataTransfer.files]);
	});
	hear(root, "keydown", (event) => event.stopPropagation()); // the notebook has its own shortcuts
	const deaf = listen(root, model, [
		["change:rows", reread], ["change:reading", reread], ["change:chosen", draw], ["change:error", tell], ["change:note", tell],
		["msg:custom", ({ upload: answer }) => answers.shift()?.(answer)],
	]);
	root.append(
		h("div.controls", h("label", "Search ", search), methods, told, h("span.gap"), unmark, differ, race, again),
		error, note,
		h("div.scroll", { tabindex: "0", role: "group", "aria-label": "Table of traces" }, h("table", h("thead", head), body)),
		drop);
	el.append(root);
	reread();
	tell();
	return deaf;
}

export default { render };
