const place = document.getElementById("figure"), [{ data, layout }] = figures;
await startPlotly();
await Plotly.newPlot(place, data, layout, CONFIG);
openTraces(place);
