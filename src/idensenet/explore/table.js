function table(about) {
  const columns = about.columns, names = columns.map((column) => column.name), real = !about.missing;
  const chosen = { i: 0, j: Math.min(1, columns.length - 1), temperature: 1, seed: 0, row: null };
  const found = { pair: null, overview: null, least: null };
  const asked = () => ({ temperature: chosen.temperature, seed: chosen.seed });
  const axis = (place, [low, high]) => ({ low, high, name: names[place], labels: columns[place].labels });
  const spelled = (place, value) => {
    const labels = columns[place].labels;
    return labels ? labels[value] ?? "unknown" : show(value);
  };
  const jitter = (place, values) => {  // categories are drawn side by side, not on top of each other
    if (!columns[place].labels) return values;
    return values.map((value, i) => (value === null ? null : value + 0.5 * ((i * 0.618034) % 1) - 0.25));
  };
  const points = ([x, y]) => { const a = jitter(chosen.i, x), b = jitter(chosen.j, y); return a.map((value, k) => [value, b[k]]); };

  const given = about.context.length ? ` The model is conditional on ${about.context.join(", ")}: samples have the values of held-out rows.` : "";
  const view = section("Pairs of columns", (real ? "Samples of the model should look like the held-out data." : "Samples of the model.") + given);
  const matrix = el("div", { class: "matrix", role: "group", "aria-label": "pairs of the first columns" });
  const panels = {
    data: new Chart("Held-out data, two columns", { draw: (chart) => drawPair(chart, "data") }),
    samples: new Chart("Samples, two columns", { draw: (chart) => drawPair(chart, "samples") }),
  };
  const margins = [0, 1].map((k) => new Chart("Histogram of a column", { ratio: 0.5, draw: (chart) => drawMargin(chart, k) }));
  const captions = [note(""), note("")];

  function drawPair(chart, kind) {
    chart.dots("of" + kind, points(found.pair[kind]), 3.5, 0.5);
    if (chosen.row === null || !found.least || kind !== "data") return;
    const row = found.least.rows[chosen.row], x = row[chosen.i], y = row[chosen.j];
    if (x !== null && y !== null) chart.inside.append(svg("circle", { class: "mark", cx: chart.sx(x), cy: chart.sy(y), r: 7 }));
  }

  function bins(k) {
    const place = [chosen.i, chosen.j][k], [low, high] = found.pair.ranges[k], labels = columns[place].labels;
    const number = labels ? labels.length : 36;
    return { edges: edgesOf(low, high, number), heights: (kind) => histogram(found.pair[kind][k], low, high, number) };
  }

  function drawMargin(chart, k) {
    const { edges, heights } = bins(k);
    const outline = (kind) => heights(kind).flatMap((height, i) => [[edges[i], height], [edges[i + 1], height]]);
    if (found.pair.data) chart.bars("ofdata", edges, heights("data"));
    chart.line("ofsamples", outline("samples"));
  }

  const pair = steady(view, async () => {
    found.pair = await ask("pair", { i: chosen.i, j: chosen.j, ...asked() });
    const [x, y] = [axis(chosen.i, found.pair.ranges[0]), axis(chosen.j, found.pair.ranges[1])];
    panels.samples.set({ x, y });
    if (real) panels.data.set({ x, y });
    margins.forEach((chart, k) => {
      const { heights } = bins(k), all = [...heights("samples"), ...(found.pair.data ? heights("data") : [])];
      chart.set({ x: [x, y][k], y: { low: 0, high: Math.max(1e-9, ...all) * 1.05, name: "density" }, yhidden: true });
      const place = [chosen.i, chosen.j][k];
      captions[k].textContent = found.pair.distances
        ? `${names[place]}: the distribution functions differ by at most ${show(found.pair.distances[k], 2)} ` +
          `(${count(found.pair.rows[1])} held-out rows, ${count(found.pair.rows[0])} samples).`
        : `${names[place]}: ${count(found.pair.rows[0])} samples.`;
    });
    for (const thumb of matrix.querySelectorAll("button")) {
      thumb.setAttribute("aria-pressed", String(thumb.pair[0] === chosen.i && thumb.pair[1] === chosen.j));
    }
  });

  const overview = steady(view, async () => {
    found.overview = await ask("overview", asked());
    const { samples, data, ranges } = found.overview, size = ranges.length;
    matrix.style.gridTemplateColumns = `repeat(${size}, minmax(0, 1fr))`;
    matrix.hidden = size < 3;
    const cells = [];
    for (let row = 0; row < size; row++) for (let col = 0; col < size; col++) {
      if (row === col) { cells.push(el("div", { class: "head", title: names[row] }, names[row])); continue; }
      const set = row > col && data ? data : samples, kind = row > col && data ? "data" : "samples";
      const [x0, x1] = ranges[col], [y0, y1] = ranges[row];
      let d = "";
      set[col].forEach((x, k) => { const y = set[row][k];
        if (x !== null && y !== null) d += `M${(100 * (x - x0) / (x1 - x0)).toFixed(1)} ${(100 - 100 * (y - y0) / (y1 - y0)).toFixed(1)}h0`; });
      const thumb = button("", () => { choose(col, row); });
      thumb.pair = [col, row];
      thumb.setAttribute("aria-label", `${names[col]} and ${names[row]}, ${kind === "data" ? "held-out data" : "samples"}`);
      thumb.append(svg("svg", { viewBox: "0 0 100 100", "aria-hidden": "true" },
        svg("path", { class: `dots of${kind}`, d, "stroke-width": 3, opacity: 0.5 })));
      cells.push(thumb);
    }
    matrix.replaceChildren(...cells);
    pair();
  });

  function choose(i, j) {
    [chosen.i, chosen.j] = [i, j];
    across.put(i);
    up.put(j);
    pair();
  }
  const across = choice("Across", names, chosen.i, (place) => { chosen.i = place; pair(); });
  const up = choice("Up", names, chosen.j, (place) => { chosen.j = place; pair(); });
  const titled = (title, chart) => el("figure", {}, el("b", {}, title), chart.box);
  view.body.append(
    controls(across, up, slider("Temperature", { low: 0.1, high: 1.5, step: 0.05, value: 1 }, (value) => { chosen.temperature = value; overview(); }),
      button("New samples", () => { chosen.seed += 1; overview(); })),
    keys(real),
    el("div", { class: "sides" }, ...(real ? [titled("Held-out data", panels.data)] : []), titled("Samples", panels.samples)),
    el("div", { class: "sides" }, ...margins.map((chart, k) => el("div", {}, chart.box, captions[k]))),
    ...(columns.length > 2 ? [el("h3", {}, `All pairs of the first ${Math.min(5, columns.length)} columns`),
      note(real ? "Below the diagonal: data; above it: samples. Choose a pair to see it large." : "Choose a pair to see it large."), matrix] : []));
  overview();

  // The least likely rows
  const odd = section("The least likely rows",
    "Held-out rows with the lowest log-density. In bold: the value that is furthest in a tail of its own column. " +
    "A low density need not mean an error; see where the row lies by choosing it.");
  const place = el("div"), words = note("");
  const least = steady(odd, async () => {
    found.least = await ask("least", { n: 12 });
    const { rows, log_prob, oddest, of_file, scored, median } = found.least;
    words.textContent = `Of ${count(scored)} held-out rows, whose median log-density is ${show(median)} nats.`;
    const head = [of_file ? "row of the file" : "held-out row", "log-density, nats", ...names].map((name, k) =>
      el("th", { scope: "col", class: k ? "number" : "keep" }, cut(name, 30)));
    const body = rows.map((values, r) => {
      const cells = values.map((value, c) => {
        const text = spelled(c, value);
        return el("td", { class: "number cut", title: text }, c === oddest[r] ? el("b", {}, text) : text);
      });
      const line = el("tr", { class: "click", tabindex: 0 }, el("td", { class: "keep" }, count(found.least.place[r])),
        el("td", { class: "number" }, log_prob[r] === null ? "\u2212\u221e" : show(log_prob[r])), ...cells);
      const choose_ = () => {
        chosen.row = r;
        for (const other of line.parentNode.children) other.setAttribute("aria-selected", String(other === line));
        panels.data.again();
      };
      line.addEventListener("click", choose_);
      line.addEventListener("keydown", (event) => { if (event.key === "Enter") choose_(); });
      return line;
    });
    place.replaceChildren(scrolled(el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)), "least likely rows"));
  });
  if (real) {
    odd.body.append(words, place);
    least();
  } else {
    odd.body.append(note(`There are none to show without the data: ${about.missing}`));
  }
}
