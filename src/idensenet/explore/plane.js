function plane(about) {
  const [left, right, bottom, top] = about.frame, names = about.names, real = !about.missing;
  const chosen = { axis: 0, at: about.start[0], point: about.start, temperature: 1, seed: 0, stage: 0 };
  const layers = { density: true, samples: false, data: false };
  const found = { density: null, samples: [], data: [], slice: null, path: null, cloud: null };

  const view = section("Density", "Click or drag in the picture to choose a point: the slice goes through it, and its path is below.");
  const picture = new Chart(`Learned density of ${names[0]} and ${names[1]}`, { most: 620, draw: drawPlane });
  const curve = new Chart("Conditional density along the slice", { ratio: 0.62, draw: drawCurve });
  const captions = { density: note(""), slice: note("") };

  function drawPlane(chart, inside) {
    const { sx, sy } = chart;
    if (layers.density && found.density) {
      inside.append(svg("image", { href: found.density.image, x: sx(left), y: sy(top), width: sx(right) - sx(left),
        height: sy(bottom) - sy(top), preserveAspectRatio: "none" }));
    }
    const dark = layers.density ? " ondark" : "";
    if (layers.data) chart.dots("ofdata" + dark, found.data);
    if (layers.samples) chart.dots("ofsamples" + dark, found.samples);
    const [x, y] = chosen.point, at = chosen.at;
    const ends = chosen.axis === 0 ? [sx(at), sy(bottom), sx(at), sy(top)] : [sx(left), sy(at), sx(right), sy(at)];
    inside.append(svg("line", { class: layers.density ? "level" : "trail", x1: ends[0], y1: ends[1], x2: ends[2], y2: ends[3] }));
    inside.append(svg("circle", { class: "mark", cx: sx(x), cy: sy(y), r: 7 }));
    chart.root.classList.add("pick");
    chart.root.addEventListener("pointerdown", (event) => {
      pick(event);
      const move = (next) => pick(next), stop = () => {
        removeEventListener("pointermove", move);
        removeEventListener("pointerup", stop);
        removeEventListener("pointercancel", stop);
      };
      addEventListener("pointermove", move);
      addEventListener("pointerup", stop);
      addEventListener("pointercancel", stop);
    });
  }

  function drawCurve(chart) {
    const slice = found.slice;
    if (slice.bars) chart.bars("ofdata", slice.edges, slice.bars);
    chart.line("ofsamples", slice.places.map((place, i) => [place, slice.conditional[i]]));
  }

  function pick(event) {
    chosen.point = picture.place(event);
    chosen.at = chosen.point[chosen.axis];
    where.put(chosen.at);
    picture.again();
    slice();
    path();
  }

  const density = steady(view, async () => {
    found.density = await ask("density");
    captions.density.textContent = `Density from 0 (black) to ${show(found.density.largest)} (brightest); ` +
      `${show(100 * found.density.inside, 3)} % of the probability lies in the picture.`;
    picture.again();
  });
  const samples = steady(view, async () => {
    found.samples = (await ask("samples", { temperature: chosen.temperature, seed: chosen.seed })).points;
    picture.again();
  });
  const data = steady(view, async () => { found.data = (await ask("data")).points; picture.again(); });
  const slice = steady(view, async () => {
    found.slice = await ask("slice", { axis: chosen.axis, at: chosen.at });
    const held = names[chosen.axis], free = names[1 - chosen.axis], { places, conditional, bars } = found.slice;
    const high = Math.max(1e-9, ...conditional, ...(bars || [])) * 1.05;
    curve.set({ x: { low: places[0], high: places[places.length - 1], name: free },
      y: { low: 0, high, name: `p(${free} | ${held})` } });
    captions.slice.textContent = `Line: density of ${free} given ${held} = ${show(chosen.at)}; the marginal density there is ` +
      `${show(found.slice.marginal)}.` +
      (bars ? ` Bars: ${count(found.slice.near)} held-out points within ${show(found.slice.half, 2)} of it.` : "");
  });

  const ends = () => (chosen.axis === 0 ? [left, right] : [bottom, top]);
  const sliceAt = () => { const [low, high] = ends();
    return slider("Slice at", { low, high, step: (high - low) / 400, value: chosen.at, digits: 3 }, (value) => {
      chosen.at = value;
      picture.again();
      slice();
    }); };
  let where = sliceAt();
  const turn = choice("Slice at a value of", names, 0, (axis) => {
    chosen.axis = axis;
    chosen.at = chosen.point[axis];
    const next = sliceAt();
    where.replaceWith(next);
    where = next;
    picture.again();
    slice();
  });
  const toggle = (name, words, load) => checkbox(words, layers[name], (on) => {
    layers[name] = on;
    if (on && !found[name]?.length && load) load();
    picture.again();
  });
  view.body.append(el("div", { class: "sides" },
    el("div", {}, picture.box, captions.density, controls(toggle("density", "density"), toggle("samples", "1,000 samples", samples),
      ...(real ? [toggle("data", "1,000 held-out points", data)] : [])),
    controls(slider("Temperature", { low: 0.1, high: 1.5, step: 0.05, value: 1 }, (value) => {
      chosen.temperature = value;
      if (layers.samples) samples();
    }), button("New samples", () => { chosen.seed += 1; if (layers.samples) samples(); else samplesBox.click(); }))),
    el("div", {}, controls(turn, where), curve.box, captions.slice)));
  const samplesBox = view.body.querySelectorAll("input[type=checkbox]")[1];

  // The path through the blocks
  const way = section("The path through the blocks",
    "Every block moves all points a little, and all of them together turn the data into a normal distribution. " +
    "The line is the path of the chosen point so far; the dots are " + (real ? "held-out points." : "samples."));
  const map = new Chart("Points after a step, and the path of the chosen point", { most: 620, draw: drawMap });
  const stage = el("div"), steps = el("div"), words = note("");

  function drawMap(chart, inside) {
    if (!found.cloud || !found.path) return;
    chart.dots("ofdata", found.cloud[chosen.stage], 3);
    const points = found.path.points.slice(0, chosen.stage + 1);
    inside.append(svg("path", { class: "trail", d: points.map(([x, y], i) => `${i ? "L" : "M"}${chart.sx(x)} ${chart.sy(y)}`).join("") }));
    for (const [x, y] of points) inside.append(svg("circle", { cx: chart.sx(x), cy: chart.sy(y), r: 2.5, class: "ofsamples" }));
    const [x, y] = points[points.length - 1];
    inside.append(svg("circle", { class: "mark", cx: chart.sx(x), cy: chart.sy(y), r: 7 }));
  }

  function frameMap() {
    const span = (axis) => {
      const values = [...found.cloud.flat().map((p) => p[axis]), ...found.path.points.map((p) => p[axis])].sort((a, b) => a - b);
      const low = values[Math.floor(values.length * 0.002)], high = values[Math.ceil(values.length * 0.998) - 1];
      const own = found.path.points.map((p) => p[axis]), room = 0.06 * (high - low || 1);
      return { low: Math.min(low, ...own) - room, high: Math.max(high, ...own) + room, name: axis === 0 ? "first coordinate" : "second coordinate" };
    };
    map.set({ x: span(0), y: span(1) });
  }

  const path = steady(way, async () => {
    const [x, y] = chosen.point;
    found.path = await ask("path", { x, y });
    if (!found.cloud) {
      found.cloud = (await ask("cloud")).stages;
      const last = found.path.steps.length - 1;
      chosen.stage = last;
      stage.append(slider("After step", { low: 0, high: last, step: 1, value: last }, (value) => { chosen.stage = value; told(); map.again(); }));
    }
    frameMap();
    told();
  });

  function told() {
    const { steps: names_, points, log_det, base, log_prob, round_trip } = found.path, i = chosen.stage;
    words.textContent = `After ${i === 0 ? "no step: the data itself" : names_[i]}. The point ends at z = ` +
      `(${points[points.length - 1].map((v) => show(v, 3)).join(", ")}). Its log-density is ${show(log_prob)} nats: ` +
      `${show(base)} of the normal distribution and ${show(log_det.reduce((a, b) => a + b, 0))} of log-determinants. ` +
      `It comes back with an error of ${show(round_trip, 2)}.`;
    const rows = names_.map((name, k) => el("tr", k === i ? { class: "click", "aria-selected": "true" } : {}, el("td", { class: "keep" }, name),
      ...[...points[k], log_det[k]].map((v) => el("td", { class: "number" }, show(v)))));
    const head = ["step", "first", "second", "log-det, nats"].map((name, k) =>
      el("th", { scope: "col", class: k ? "number" : "keep" }, name));
    steps.replaceChildren(scrolled(el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows)), "steps of the way"));
  }

  way.body.append(el("div", { class: "sides" }, el("div", {}, controls(stage), map.box), el("div", {}, words, steps)));
  stage.style.flex = "1 1 16rem";
  picture.set({ x: { low: left, high: right, name: names[0] }, y: { low: bottom, high: top, name: names[1] } });
  density();
  slice();
  path();
}
