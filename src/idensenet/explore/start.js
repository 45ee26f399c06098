const VIEWS = { plane, table, images };

function tile(value, words, kind = "plain") {
  const node = el("div", { class: `tile ${kind}` }, el("b", {}, value), el("span", {}, words));
  byId("tiles").append(node);
  return node;
}

async function certificate(waiting) {
  const found = await ask("certificate");
  if (found.L === null) { waiting.remove(); return; }
  const fine = found.contractive;
  waiting.replaceWith(tile(show(found.L), fine ? "largest L of a block: certified invertible" : "largest L of a block: NOT CERTIFIED",
    fine ? "plain" : "bad"));
  const bad = found.blocks.filter((block) => !block.contractive).map((block) => `${block.name} (L = ${show(block.L)})`);
  if (!fine) {
    byId("alarms").append(el("p", { class: "alarm" }, `NOT CERTIFIED: the bound L of ${bad.join(", ")} is not below 1, ` +
      "so nothing guarantees that the model is invertible. What this page shows may be wrong."));
  }
}

function offer() {
  const waiting = tile("", "guaranteed Lipschitz bound of every block; it takes a while for images");
  const act = button("Certify", () => {
    act.disabled = true;
    act.textContent = "Computing \u2026";
    certificate(waiting).catch((error) => { act.textContent = error.message; });
  });
  waiting.firstChild.append(act);
}

async function concatenation() {
  const found = await ask("concatenation");
  if (!found.maps.length) return;
  const part = section("Weights of the concatenation",
    "A dense layer passes on eta1 times its input and eta2 times its transformation; the pair has norm one.");
  part.body.append(el("div", { class: "pair" }, ...found.maps.map((map) => el("div", {},
    el("p", { class: "hint", "aria-hidden": "true" }, "Scroll sideways for more \u2192"),
    el("figure", { class: "heat", tabindex: 0 }, el("picture", {},
    el("source", { media: "(prefers-color-scheme: dark)", srcset: map.dark }), el("img", { src: map.light, alt: map.words })))))));
}

async function start() {
  try {
    const about = await ask("about");
    document.title = `${about.title} \u2013 idensenet explore`;
    byId("title").textContent = about.title;
    const width = about.columns ? about.columns.length : about.shape[0];
    const shape = about.kind === "images" ? `images of ${about.shape.join(" x ")}` : width === 1 ? "one column" : `${width} columns`;
    byId("subtitle").textContent = `A density of ${shape}` + (about.data ? `; data: ${about.data}` : "");
    if (about.missing) byId("alarms").append(el("p", { class: "note" }, `Without data: ${about.missing}`));
    for (const words of about.notes) byId("alarms").append(el("p", { class: "note" }, words));
    tile(count(about.parameters), "parameters");
    if (about.blocks) tile(count(about.blocks), "residual or monotone blocks");
    VIEWS[about.kind](about);
    await concatenation();
    if (about.certified) await certificate(tile("\u2026", "computing the certificate"));
    else offer();
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    byId("title").textContent = "The model cannot be shown";
    byId("alarms").append(el("p", { class: "alarm" }, error.message));
  }
}
start();
