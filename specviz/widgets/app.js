// The app's heading: buttons for its sections, a hint for the current section and a status line. Built on shared.js, which
// precedes this file.

function render({ model, el }) {
	const root = h("header.sv.app"), note = h("p.note", { role: "status", hidden: "" }), hint = h("p.hint");
	const buttons = model.get("sections").map((name) => button(name, `show ${name}`, () => (name === model.get("section") ? model.send({ do: "show" }) : share(model, { section: name }))));
	const tell = () => {
		buttons.forEach((node) => pressed(node, node.textContent === model.get("section")));
		hint.textContent = model.get("hints")[model.get("section")];
		note.textContent = model.get("note");
		note.hidden = !model.get("note");
	};
	root.append(h("h1", "specviz"), h("nav", { "aria-label": "Sections" }, ...buttons), hint, note);
	el.append(root);
	tell();
	model.send({ do: "show" });
	return listen(root, model, [["change:section", tell], ["change:note", tell]]);
}

export default { render };
