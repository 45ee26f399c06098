function images(about) {
  const chosen = { of: 0, first: 0, angle: 10, seed: 0, reach: 1, temperature: 1, drawn: 0 };
  const what = about.real ? "held-out images" : "samples (the data cannot be read)";
  const PER_PAGE = 12;
  const crisp = (kind = "") => el("img", { class: `crisp ${kind}`, alt: "" });
  const put = (image, address, words) => { image.src = address; image.alt = words; };

  const view = section("An image and its neighbours",
    "Neighbours lie on the sphere through the code of the image, in two random directions; the image itself is in the middle. " +
    `Choose one of ${count(about.count)} ${what}.`);
  const thumbs = el("div", { class: "thumbs" }), own = crisp("small"), around = crisp(), words = note("");
  const choices = steady(view, async () => {
    const found = await ask("choices", { first: chosen.first, n: PER_PAGE });
    thumbs.replaceChildren(...found.images.map((address, k) => {
      const place = found.first + k, image = el("img", { src: address, alt: `image ${place}` });
      return el("button", { type: "button", "aria-pressed": String(place === chosen.of), onclick: (event) => {
        chosen.of = place;
        for (const other of thumbs.children) other.setAttribute("aria-pressed", String(other === event.currentTarget));
        chosen_();
        neighbourhood();
      } }, image);
    }));
  });
  const chosen_ = steady(view, async () => {
    const found = await ask("chosen", { of: chosen.of });
    put(own, found.image, `image ${chosen.of}`);
    words.textContent = `Image ${chosen.of}: ${show(found.bits)} bits per dimension. Its code has norm ${show(found.norm, 3)}; ` +
      `codes of samples have about ${show(found.usual, 3)}.`;
  });
  const neighbourhood = steady(view, async () => {
    const { of, angle, seed, reach } = chosen, found = await ask("neighbourhood", { of, angle, seed, reach });
    put(around, found.image, `${found.side} x ${found.side} neighbours of image ${of}, ${show(angle)} degrees apart`);
  });
  const turn = (step) => () => {
    const last = Math.max(0, about.count - 1);
    chosen.first = Math.min(last - (last % PER_PAGE), Math.max(0, chosen.first + step * PER_PAGE));
    choices();
    round();
  };
  view.body.append(thumbs, about.count > PER_PAGE ? controls(button("Earlier", turn(-1)), button("Later", turn(1))) : "",
    el("div", { class: "sides" }, el("div", {}, own, words,
      controls(slider("Angle between neighbours, degrees", { low: 0, high: 30, step: 0.5, value: 10, digits: 3 },
        (value) => { chosen.angle = value; neighbourhood(); })),
      controls(choice("Grid", ["3 x 3", "5 x 5"], 0, (k) => { chosen.reach = k + 1; neighbourhood(); }),
        button("Other directions", () => { chosen.seed += 1; neighbourhood(); }))),
    el("div", {}, around)));

  const drawn = section("Samples at a temperature",
    "The temperature is the scale of the latent noise. Below 1, samples are closer to the centre and smoother; 1 is the model itself.");
  const grid = crisp();
  const samples = steady(drawn, async () => {
    const found = await ask("samples", { temperature: chosen.temperature, seed: chosen.drawn, n: 24 });
    put(grid, found.image, `24 samples at temperature ${show(chosen.temperature)}`);
  });
  drawn.body.append(controls(slider("Temperature", { low: 0.1, high: 1.5, step: 0.05, value: 1, digits: 3 },
    (value) => { chosen.temperature = value; samples(); }), button("New samples", () => { chosen.drawn += 1; samples(); })), grid);

  const trip = section("There and back", "An image becomes a code and an image again; the inverse is computed to a tolerance.");
  const strips = ["original", "back", "error"].map((name) => [name, crisp("strip")]), told = note(""), title = el("b");
  const round = steady(trip, async () => {
    const found = await ask("reconstructions", { first: chosen.first, n: 8 });
    for (const [name, image] of strips) put(image, found[name], `images, ${name}`);
    title.textContent = `Error, times ${count(found.factor)}`;
    told.textContent = `Images ${chosen.first} and after. Error in units of the range of a pixel: largest ${show(found.largest, 2)}, ` +
      `mean ${show(found.mean, 2)}.`;
  });
  trip.body.classList.add("stacked");
  trip.body.append(...strips.map(([name, image]) => el("figure", {},
    name === "error" ? title : el("b", {}, name === "back" ? "Came back" : "Original"), image)), told);

  choices();
  chosen_();
  neighbourhood();
  samples();
  round();
}
