// A click on a point opens its link, which Python wrote, in a new tab.
const openTraces = (plot) => plot.on("plotly_click", (event) => {
	const link = event.points.map((point) => point.customdata).find((to) => typeof to === "string" && to);
	if (link) window.open(link, "_blank", "noopener");
});
