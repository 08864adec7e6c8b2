// Filters, sorting and plots of the leaderboard. Every page is complete without this file. All texts go into the page
// as text; what is filtered, sorted and plotted is read from the rows of the tables.
"use strict";
(() => {
  const form = document.getElementById("filters");
  const NUMBERS = new Set(["asked", "claimed", "proven", "replaced", "audited", "accuracy", "drop", "cost", "inversion", "membership", "robustness"]);
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

  // Plots follow the filters, and move to the axis that is chosen.
  let claimed = false;
  function place(wanted) {
    if (wanted !== claimed) {
      claimed = wanted;
      for (const section of sections) {
        for (const mark of section.marks.values()) {
          const { p, c, y } = mark.dataset;
          mark.setAttribute("transform", `translate(${claimed ? c : p} ${y})`);
        }
        section.plot.querySelector(".x-name").textContent = `${claimed ? "claimed epsilon" : "proven epsilon, replace-one"}`;
      }
    }
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
  }
})();
