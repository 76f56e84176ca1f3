// The app's heading: its sections as buttons, what one does in each, and a line that says what must be known. Built on shared.js, which stands
// in front of this text.

function render({ model, el }) {
	const root = h("header.sv.app"), note = h("p.note", { role: "status", hidden: "" }), hint = h("p.hint");
	const buttons = model.get("sections").map((name) => button(name, `show ${name}`, () => share(model, { section: name })));
	const tell = () => {
		buttons.forEach((node) => pressed(node, node.textContent === model.get("section")));
		hint.textContent = model.get("hints")[model.get("section")];
		note.textContent = model.get("note");
		note.hidden = !model.get("note");
	};
	root.append(h("h1", "specviz"), h("nav", { "aria-label": "Sections" }, ...buttons), hint, note);
	el.append(root);
	tell();
	model.send({ do: "begin" });
	return listen(root, model, [["change:section", tell], ["change:note", tell]]);
}

export default { render };
