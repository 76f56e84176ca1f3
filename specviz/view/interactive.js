const place = document.getElementById("figure"), [{ data, layout }] = figures;
await startPlotly();
await Plotly.newPlot(place, data, layout, { displaylogo: false, responsive: true });
openTraces(place);
