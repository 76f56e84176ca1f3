const place = document.getElementById("figure"), [{ data, layout }] = figures;
delete layout.title; // it stands above, where a narrow page can break it
place.style.height = `${layout.height}px`; // nothing moves when it is drawn
// A figure is made for a white page: its axes, letters and grey lines take the page's colours.
const axis = /^[xy]axis\d*$/;
const shades = { "#ffffff": "--bg", "#000000": "--fg", "#333333": "--fg", "#888888": "--soft" };
const tinted = (part) => (Object.hasOwn(shades, part.color) ? { ...part, color: colour(shades[part.color]) } : part);
const themed = () => {
	const line = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line") };
	const axes = Object.entries(layout).filter(([name]) => axis.test(name)).map(([name, own]) => [name, { ...own, ...line }]);
	const words = { color: colour("--fg") }, clear = "rgba(0,0,0,0)";
	const notes = (layout.annotations ?? []).map((note) => ({ ...note, font: { ...note.font, ...words } }));
	const shapes = (layout.shapes ?? []).map((shape) => ({ ...shape, line: { ...shape.line, ...words } }));
	return { ...layout, ...Object.fromEntries(axes), annotations: notes, shapes, font: { ...layout.font, ...words }, paper_bgcolor: clear, plot_bgcolor: clear };
};
const parts = ["line", "marker", "textfont"];
const coloured = () => data.map((trace) => ({ ...trace, ...Object.fromEntries(parts.filter((name) => trace[name]).map((name) => [name, tinted(trace[name])])) }));
await startPlotly();
await Plotly.newPlot(place, coloured(), themed(), CONFIG);
openTraces(place);
dark.addEventListener("change", () => Plotly.react(place, coloured(), themed()).then(() => arrange()));
// On a narrow page the legend stands below the plot.
const narrow = matchMedia("(max-width:600px)"), wide = { orientation: "v", x: 1.02, y: 1, yanchor: "auto", ...layout.legend };
const arrange = () => {
	const below = { orientation: "h", x: 0, y: -0.15, yanchor: "top" }, legend = narrow.matches ? below : wide;
	return Plotly.relayout(place, Object.fromEntries(Object.keys(below).map((name) => [`legend.${name}`, legend[name]])));
};
narrow.addEventListener("change", arrange);
if (narrow.matches) await arrange();
