// Filters, sorting and plots of the leaderboard. Every page is complete without this file. All texts go into the page
// as text; what is filtered, sorted and plotted is read from the rows of the tables.
"use strict";
(() => {
  const form = document.getElementById("filters");
  const root = document.body.dataset.root;
  const NUMBERS = new Set(["asked", "claimed", "proven", "audited", "accuracy", "drop", "cost", "inversion", "membership", "robustness"]);
  const FIELDS = ["dataset", "unit", "public", "preset", "basis", "max", "source", "x", "q"];
  let sort = "";

  // Rows stand below the head of their budget. A head goes where its rows are hidden, and in any other order than ours.
  const parts = (body) => {
    const groups = [];
    for (const row of body.rows) row.classList.contains("budget") ? groups.push([row]) : groups.at(-1).push(row);
    return { body, groups, rows: groups.flatMap((group) => group.slice(1)) };
  };
  const showHeads = ({ groups }) => {
    for (const [head, ...rows] of groups) head.hidden = Boolean(sort) || rows.every((row) => row.hidden);
  };
  for (const box of document.querySelectorAll(".command")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(box.querySelector("code").textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(box.querySelector("code"));
        button.textContent = "selected: copy it";
      }
    });
    box.append(button);
  }

  const sections = [...document.querySelectorAll("section.ranking")].map((element) => ({
    element,
    ...parts(element.querySelector("tbody")),
    plot: element.querySelector(".plot"),
    marks: new Map([...element.querySelectorAll(".pt")].map((mark) => [mark.dataset.row, mark])),
  }));
  for (const head of document.querySelectorAll(".board th[data-key]")) {
    const label = head.textContent;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = label;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const key = head.dataset.key;
      const first = key === "accuracy" ? "desc" : "asc";
      const other = first === "asc" ? "desc" : "asc";
      setSort(sort === `${key}.${first}` ? `${key}.${other}` : sort === `${key}.${other}` ? "" : `${key}.${first}`);
      store();
    });
  }

  function setSort(wanted) {
    sort = wanted;
    const [key, direction] = wanted.split(".");
    for (const head of document.querySelectorAll(".board th[data-key]")) {
      if (head.dataset.key === key) head.setAttribute("aria-sort", direction === "asc" ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    const bodies = sections.length ? sections : [...document.querySelectorAll(".board")].map((table) => {
      return table.atFirst ??= parts(table.tBodies[0]);
    });
    const sign = direction === "asc" ? 1 : -1;
    for (const part of bodies) {
      const { body, groups, rows } = part;
      const value = (row) => (NUMBERS.has(key) ? Number(row.dataset[key] ?? NaN) : row.dataset[key] || "");
      const ordered = !key ? groups.flat() : rows.map((row) => [value(row), row]).sort(([a], [b]) => {
        const none = (v) => v === "" || Number.isNaN(v);
        if (none(a) || none(b)) return none(a) - none(b); // what is missing comes last in both directions
        return sign * (typeof a === "string" ? a.localeCompare(b, "en") : a === b ? 0 : a - b);
      }).map(([, row]) => row);
      const all = document.createDocumentFragment();
      all.append(...ordered);
      body.append(all);
      showHeads(part);
    }
  }

  // The state of filters, order and axis is the hash of the address: what is seen can be cited.
  function store() {
    if (!form) return;
    const state = new URLSearchParams();
    for (const name of FIELDS) if (form.elements[name].value) state.set(name, form.elements[name].value);
    if (sort) state.set("sort", sort);
    history.replaceState(null, "", state.size ? `#${state}` : location.pathname + location.search);
  }
  function restore() {
    const hash = location.hash.slice(1);
    if (!hash.includes("=")) return;
    const state = new URLSearchParams(hash);
    for (const name of FIELDS) form.elements[name].value = state.get(name) ?? "";
    const [key, direction] = (state.get("sort") ?? "").split(".");
    const known = document.querySelector(`.board th[data-key="${CSS.escape(key)}"]`);
    setSort(known && /^(asc|desc)$/.test(direction) ? `${key}.${direction}` : "");
  }

  function filter() {
    const wanted = Object.fromEntries(FIELDS.map((name) => [name, form.elements[name].value]));
    const words = wanted.q.toLowerCase().split(/\s+/).filter(Boolean);
    let rows = 0, rankings = 0, all = 0;
    for (const section of sections) {
      const { dataset, unit } = section.element.dataset;
      const here = (!wanted.dataset || wanted.dataset === dataset) && (!wanted.unit || wanted.unit === unit);
      let shown = 0;
      for (const row of section.rows) {
        const data = row.dataset;
        let ok = here && (!wanted.public || data.public.split(" ").includes(wanted.public)) &&
          ["preset", "basis", "source"].every((name) => !wanted[name] || wanted[name] === data[name]);
        // The same number as in the plot: of a reported row it is the paper's where its proof holds, else infinite.
        if (ok && wanted.max) ok = Number(section.marks.get(row.id)?.dataset.proven) <= Number(wanted.max);
        if (ok && words.length) {
          row.words ??= `${dataset} ${unit} ${row.textContent}`.toLowerCase();
          ok = words.every((word) => row.words.includes(word));
        }
        if (row.hidden === ok) {
          row.hidden = !ok;
          section.marks.get(row.id)?.toggleAttribute("hidden", !ok);
        }
        shown += ok;
      }
      showHeads(section);
      section.element.hidden = !shown;
      all += section.rows.length;
      rows += shown;
      rankings += shown > 0;
    }
    document.getElementById("count").textContent = `${rows} of ${all} rows, in ${rankings} of ${sections.length} rankings`;
    place(wanted.x === "claimed");
  }

  // Plots: the drawn ones follow the filters; where Plotly is there it takes their place when they come into view.
  let claimed = false;
  function place(wanted) {
    if (wanted !== claimed) {
      claimed = wanted;
      for (const section of sections) {
        for (const mark of section.marks.values()) {
          const { p, c, y } = mark.dataset;
          mark.setAttribute("transform", `translate(${claimed ? c : p} ${y})`);
        }
        section.plot.querySelector(".x-name").textContent = `${claimed ? "claimed" : "proven"} epsilon`;
      }
    }
    for (const section of sections) if (section.drawn && !section.element.hidden) draw(section);
  }

  function draw(section) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
    const { low, high, beyond } = Object.fromEntries(Object.entries(section.plot.dataset).map(([k, v]) => [k, Number(v)]));
    const end = high + (beyond ? 2 : 1);
    const at = (epsilon) => epsilon === Infinity ? end - 0.5 : epsilon > 10 ** high ? high + 0.5 : Math.max(Math.log10(epsilon), low);
    const traces = new Map();
    const frames = {
      name: "claim not covered", type: "scatter", mode: "markers", x: [], y: [], hoverinfo: "skip",
      marker: { symbol: "diamond-open", size: 17, color: colour("bad"), line: { width: 1.3, color: colour("bad") } },
    };
    for (const row of section.rows) {
      const mark = section.marks.get(row.id);
      if (row.hidden || !mark) continue;
      const data = row.dataset, hollow = mark.classList.contains("hollow"), uncovered = mark.classList.contains("uncovered");
      const name = data.method + (hollow ? " (reported)" : "");
      const k = [...mark.classList].find((word) => /^k\d+$/.test(word));
      if (!traces.has(name)) traces.set(name, {
        name: plain(name.length > 40 ? `${name.slice(0, 39)}…` : name), type: "scatter", mode: "markers", x: [], y: [], text: [], customdata: [],
        error_y: { type: "data", array: [], thickness: 1.2, width: 3 }, hovertemplate: "%{text}<extra></extra>",
        marker: { color: colour(k), size: 9, symbol: mark.dataset.symbol + (hollow ? "-open" : ""), line: { width: hollow ? 2 : 0.6, color: hollow ? colour(k) : colour("paper") } },
      });
      const trace = traces.get(name);
      const epsilon = claimed ? (data.claimed === undefined ? Infinity : Number(data.claimed))
        : Number(mark.dataset.proven);
      trace.x.push(at(epsilon));
      trace.y.push(Number(data.accuracy));
      if (uncovered) frames.x.push(at(epsilon)), frames.y.push(Number(data.accuracy));
      trace.error_y.array.push(Number(data.sd ?? 0));
      trace.text.push(mark.querySelector("title").textContent.split(/[;:] /).map(plain).join("<br>"));
      trace.customdata.push(mark.getAttribute("href"));
    }
    const narrow = section.drawn.clientWidth < 600; // no room for a legend: the one below the drawing is kept
    section.plot.querySelector(".colours").hidden = !narrow;
    const values = [], names = [];
    for (let d = low; d <= high; d++) values.push(d), names.push(narrow && beyond && d === high ? "" : String(Number((10 ** d).toPrecision(1))));
    if (beyond) values.push(high + 0.5), names.push(`> ${10 ** high}`);
    values.push(end - 0.5), names.push("∞");
    const axis = { gridcolor: colour("line"), zeroline: false, linecolor: colour("muted") };
    Plotly.react(section.drawn, [...traces.values(), ...(frames.x.length ? [frames] : [])], {
      margin: { l: 52, r: 10, t: 8, b: 44 }, hovermode: "closest", showlegend: !narrow, dragmode: "zoom",
      paper_bgcolor: colour("paper"), plot_bgcolor: colour("paper"),
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("ink") },
      hoverlabel: { align: "left", bgcolor: colour("raised"), bordercolor: colour("muted"), font: { color: colour("ink") } },
      xaxis: { ...axis, title: { text: `${claimed ? "claimed" : "proven"} epsilon` }, range: [low - 0.05, end], tickvals: values, ticktext: names, tickangle: 0 },
      yaxis: { ...axis, title: { text: "accuracy in %" } },
      shapes: [{ type: "rect", xref: "x", yref: "paper", x0: high, x1: end, y0: 0, y1: 1, layer: "below", line: { width: 0 }, fillcolor: colour("raised") }],
    }, { responsive: true, displaylogo: false });
  }

  function interactive() {
    const seen = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        const section = sections.find((one) => one.plot === target);
        if (!isIntersecting || section.drawn) continue;
        section.drawn = document.createElement("div");
        section.drawn.className = "interactive";
        const drawing = section.plot.querySelector("svg");
        drawing.before(section.drawn);
        drawing.style.display = "none";
        draw(section);
        section.drawn.on("plotly_click", ({ points }) => { location.href = points[0].customdata; });
      }
    }, { rootMargin: "200px" });
    for (const section of sections) seen.observe(section.plot);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => place(claimed));
  }

  // A committed copy of the site has no Plotly. A script that is missing would be an error on the console; a missing
  // object is none. So a small file that comes and goes with Plotly is asked for first.
  function askForPlotly() {
    const probe = document.createElement("object");
    probe.type = "text/plain";
    probe.data = `${root}assets/plotly.txt`;
    probe.setAttribute("aria-hidden", "true");
    probe.tabIndex = -1;
    probe.style.cssText = "position:absolute;width:0;height:0;border:0";
    probe.onerror = () => probe.remove();
    probe.onload = () => {
      probe.remove();
      const script = document.createElement("script");
      script.src = `${root}assets/plotly.min.js`;
      script.onload = interactive;
      document.head.append(script);
    };
    document.body.append(probe);
  }

  // What is not on the screen is not laid out, so that its height is a guess. A link to a place needs all heights.
  function whole(target) {
    document.documentElement.classList.add("whole");
    target.scrollIntoView({ behavior: "instant" });
  }

  function named() {
    try {
      return decodeURIComponent(location.hash.slice(1));
    } catch {
      return "";
    }
  }

  if (form) {
    form.hidden = false;
    restore();
    filter();
    // The browser may not have looked for the target yet, or scroll to it once more when all is loaded.
    const first = document.querySelector(`[id="${CSS.escape(named())}"]`);
    if (first) {
      whole(first);
      addEventListener("load", () => first.scrollIntoView({ behavior: "instant" }));
    }
    else if (location.hash.includes("=")) form.scrollIntoView({ behavior: "instant" }); // a cited view: what it shows
    form.addEventListener("input", () => { filter(); store(); });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(() => {
      setSort("");
      filter();
      if (location.hash.includes("=")) store();
    }));
    addEventListener("hashchange", () => {
      // A link to a ranking or row that the filters hide takes them away.
      const target = document.querySelector(":target");
      if (target?.closest("[hidden]")) {
        form.reset();
        requestAnimationFrame(() => setTimeout(() => whole(target), 50));
      } else if (target) {
        whole(target);
      } else {
        restore();
        filter();
      }
    });
    const start = () => (window.requestIdleCallback ?? setTimeout)(askForPlotly);
    if (document.readyState === "complete") start();
    else addEventListener("load", start);
  }
})();
