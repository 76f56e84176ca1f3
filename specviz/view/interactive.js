const place = document.getElementById("figure"), [{ data, layout }] = figures;
delete layout.title; // it stands above, where a narrow page can break it
place.style.minHeight = `${layout.height}px`; // nothing moves when it is drawn
await startPlotly();
await Plotly.newPlot(place, data, layout, CONFIG);
openTraces(place);
// On a narrow page the legend stands below the plot.
const narrow = matchMedia("(max-width:600px)"), wide = { orientation: "v", x: 1.02, y: 1, yanchor: "auto", ...layout.legend };
const arrange = () => {
	const below = { orientation: "h", x: 0, y: -0.15, yanchor: "top" }, legend = narrow.matches ? below : wide;
	return Plotly.relayout(place, Object.fromEntries(Object.keys(below).map((name) => [`legend.${name}`, legend[name]])));
};
narrow.addEventListener("change", arrange);
if (narrow.matches) await arrange();
