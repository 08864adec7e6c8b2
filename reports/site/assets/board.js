// The table of the leaderboard: filters, details, comparison, downloads. All texts go into the page as text.
"use strict";
(() => {
  const form = document.getElementById("filters");
  if (!form) return; // a board without rows
  const { details: labels, terms, groups, rankings, rows } = JSON.parse(document.getElementById("data").textContent);
  const byId = new Map(rows.map((row) => [row.id, row]));
  for (const row of rows) {
    for (const key of ["budget", "proven", "audited"]) if (row[key] !== null) row[key] = Number(row[key]);
    row.heading = groups[row.group];
  }
  const FIELDS = ["dataset", "method", "max", "seeds", "preset", "public", "audit", "source", "q"];
  const open = new Set(), compared = new Set();
  let shown = [], sort = "";

  // ---- cells
  // A cell is a text or a list whose parts are texts or [text, address].
  const linked = ([text, href]) => make("a", { href, textContent: text });
  const content = (cell) => !Array.isArray(cell) ? [String(cell ?? "–")]
    : cell.flatMap((part, i) => typeof part === "string" ? [i ? "; " : "", part] : [i ? " " : "", linked(part)]);
  const plain = (cell) => content(cell ?? "").map((part) => part.textContent ?? part).join("");
  const small = (text, className = "") => make("small", { textContent: text, className });
  const mark = (row) => small(row.ours ? `claim ${row.claim}` : row.claim, `claim${row.fails ? " bad" : ""}`);

  function name(cell) {
    const row = cell.getData();
    const button = make("button", { type: "button", className: "more-button", textContent: "▸" });
    button.setAttribute("aria-label", `details of ${row.label}, budget ${row.budgetText}`);
    button.setAttribute("aria-expanded", open.has(row.id));
    const place = make("span", { className: "place", textContent: row.place, title: row.unranked ? `no rank: ${row.unranked}` : terms.place });
    const label = row.href ? linked([row.label, row.href]) : make("span", { textContent: row.label });
    return make("div", { className: "name" }, button, place, make("span", {}, label, ...(row.claim ? [mark(row)] : []),
      ...row.cautions.map((text) => small(text, "caution")), ...(row.where ? [small(row.where)] : [])));
  }
  const budget = (cell) => make("div", {}, cell.getData().budgetText, small(cell.getData().basis));
  const proven = (cell) => make("div", {}, ...content(cell.getData().provenCell));
  const audited = (cell) => make("div", { className: cell.getData().weak ? "powerless" : "" }, ...content(cell.getData().auditedCell));
  const risk = (cell) => make("div", {}, ...content(cell.getData().riskCell));
  const accuracy = (cell) => {
    const { accuracyCell, interval } = cell.getData();
    return make("div", {}, ...content(accuracyCell), ...(interval ? [small(interval)] : []));
  };
  const text = (say) => (cell) => make("span", { textContent: say(cell.getData()) });
  const compareBox = (row) => {
    const box = make("input", { type: "checkbox", checked: compared.has(row.id) });
    box.dataset.compare = row.id;
    box.setAttribute("aria-label", `compare ${row.label}, budget ${row.budgetText}`);
    return box;
  };

  // Missing values come last in both sort directions.
  const numbers = (a, b, _x, _y, _column, direction) => {
    const last = direction === "asc" ? 1 : -1;
    return a === b ? 0 : a === null ? last : b === null ? -last : a - b;
  };
  const heading = (label, unit = "") => () => make("button", { type: "button", title: terms[label] ?? "", textContent: label + unit });
  const number = (field, formatter, width, grow, more = {}) => ({
    field, title: field, titleFormatter: heading(field), formatter, minWidth: width, widthGrow: grow, hozAlign: "right",
    headerHozAlign: "right", sorter: numbers, responsive: 0, ...more,
  });
  // Columns that a narrow screen has no room for.
  const wide = (label, formatter, width, grow, responsive) => ({
    field: label, title: label, titleFormatter: () => make("span", { title: terms[label] ?? "", textContent: label }), formatter,
    minWidth: width, widthGrow: grow, responsive, headerSort: false,
  });
  const columns = [
    { field: "label", title: "method", titleFormatter: heading("method"), formatter: name, minWidth: 118, widthGrow: 3, responsive: 0 },
    number("budget", budget, 54, 1),
    number("proven", proven, 58, 1),
    number("audited", audited, 62, 1.3),
    number("risk", risk, 76, 1, { title: "1 in 100", titleFormatter: heading("1 in 100"), responsive: 1 }),
    number("accuracy", accuracy, 66, 1.3, { titleFormatter: heading("accuracy", " %"), headerSortStartingDir: "desc" }),
    number("seeds", text((row) => row.ours ? row.seeds : "–"), 54, 0.6, { responsive: 2 }),
    wide("public data", text((row) => row.public.join(" + ")), 150, 2, 2),
    wide("preset", text((row) => row.preset || "–"), 64, 0.6, 3),
    wide("compare", (cell) => compareBox(cell.getData()), 80, 0.6, 1),
  ];

  function more(row) {
    const list = make("dl", { className: "facts" });
    labels.forEach((label, i) => {
      if (row.details[i] !== null) list.append(make("dt", { textContent: label, title: terms[label] ?? "" }), make("dd", {}, ...content(row.details[i])));
    });
    const box = make("div", { className: "more" }, list, make("label", {}, compareBox(row), " compare with another row"));
    box.setAttribute("role", "gridcell");
    return box;
  }
  function dress(line) {
    const element = line.getElement(), row = line.getData();
    if (!row.id) return;
    element.classList.toggle("printed", !row.ours);
    element.classList.toggle("cautioned", row.cautions.length > 0);
    element.dataset.row = row.id;
    element.querySelector(".more")?.remove();
    element.querySelector(".more-button")?.setAttribute("aria-expanded", open.has(row.id));
    if (open.has(row.id)) element.append(more(row));
  }

  // Roles that Tabulator leaves out: a heading is a row with one cell.
  function band(value, count, lines, group) {
    group.getElement().setAttribute("role", "row");
    const row = (lines[0].getData ?? (() => lines[0])).call(lines[0]), said = rankings[row.ranking][3][groups[row.group]];
    const cell = make("span", { textContent: `${value} (${count})${said ? `. ${said}` : ""}` });
    cell.setAttribute("role", "gridcell");
    return cell;
  }

  const table = new Tabulator("#table", {
    data: [], index: "id", layout: "fitColumns", responsiveLayout: "hide", pagination: true, paginationSize: 250, columns, rowFormatter: dress,
    columnDefaults: { headerSortTristate: true, resizable: false, variableHeight: true, vertAlign: "top" },
    groupBy: "heading", groupToggleElement: false, groupHeader: band, autoResize: false,
    placeholder: "No row is left: clear a filter.",
  });

  // ---- what is shown
  function fits(row, wanted, words) {
    return (wanted.dataset === "all" || row.ranking === wanted.dataset) && (!wanted.method || row.method === wanted.method) &&
      (!wanted.max || (row.proven !== null && row.proven <= Number(wanted.max))) &&
      (!wanted.seeds || row.seeds >= Number(wanted.seeds)) && (!wanted.preset || row.preset === wanted.preset) &&
      (!wanted.audit || (row.audited !== null) === (wanted.audit === "yes")) &&
      (!wanted.public || row.public.includes(wanted.public)) && (!wanted.source || row.ours === (wanted.source === "ours")) &&
      (!words.length || words.every((word) => (row.words ??= JSON.stringify([rankings[row.ranking], row.label, row.where, row.claim, row.details]).toLowerCase()).includes(word)));
  }
  function head() {
    for (const row of shown) {
      row.heading = (form.elements.dataset.value === "all" ? `${rankings[row.ranking][0]}: ` : "") + groups[row.group];
    }
  }
  function compare() {
    const box = document.getElementById("compare"), picked = [...compared].map((id) => byId.get(id));
    box.hidden = !picked.length;
    for (const input of document.querySelectorAll("[data-compare]")) input.checked = compared.has(input.dataset.compare);
    const clear = make("button", { type: "button", textContent: "close" });
    clear.addEventListener("click", () => { compared.clear(); compare(); store(); });
    const head = make("tr", {}, make("td", {}), ...picked.map((row) => make("th", { scope: "col" }, row.label)));
    const body = make("tbody", {});
    const all = [["data set", (row) => rankings[row.ranking][0]], ["place", (row) => row.place], ["budget", (row) => `${row.budgetText} ${row.basis}`],
      ["proven", (row) => row.provenCell], ["audited", (row) => row.auditedCell], ["1 in 100", (row) => row.riskCell], ["accuracy", (row) => row.accuracyCell],
      ...labels.map((label, i) => [label, (row) => row.details[i]])];
    for (const [label, value] of all) {
      const cells = picked.map(value);
      if (cells.every((cell) => cell === null || cell === undefined)) continue;
      const differ = new Set(cells.map(plain)).size > 1;
      body.append(make("tr", { className: differ ? "differs" : "" }, make("th", { scope: "row", textContent: label }), ...cells.map((cell) => make("td", {}, ...content(cell)))));
    }
    const said = picked.length === 1 ? "Choose a second row to compare it with." : "Marked lines differ.";
    box.replaceChildren(make("p", {}, said, " ", clear), make("table", {}, make("thead", {}, head), body));
  }

  // ---- the view is the hash of the address
  function store() {
    const state = new URLSearchParams();
    for (const field of FIELDS) {
      const control = form.elements[field];
      if (control.value && !(field === "dataset" && control.value === control.options[0].value)) state.set(field, control.value);
    }
    if (sort) state.set("sort", sort);
    if (compared.size) state.set("compare", [...compared].join(","));
    history.replaceState(null, "", state.size ? `#${state}` : location.pathname + location.search);
  }
  async function update() {
    const wanted = Object.fromEntries(FIELDS.map((field) => [field, form.elements[field].value]));
    const words = wanted.q.toLowerCase().split(/\s+/).filter(Boolean);
    shown = rows.filter((row) => fits(row, wanted, words));
    head();
    document.getElementById("count").textContent = `${shown.length} of ${rows.length} rows${wanted.public ? "; ranks are among all, with any public data" : ""}`;
    await table.setData(shown);
  }
  async function restore() {
    const state = new URLSearchParams(location.hash.slice(1));
    const one = byId.get(state.get("row"));
    for (const field of FIELDS) form.elements[field].value = state.get(field) ?? "";
    if (one) form.elements.dataset.value = one.ranking;
    if (!form.elements.dataset.value) form.elements.dataset.selectedIndex = 0;
    compared.clear();
    for (const id of (state.get("compare") ?? "").split(",").filter((id) => byId.has(id)).slice(0, 2)) compared.add(id);
    if (one) open.add(one.id);
    await update();
    const [field, direction] = (state.get("sort") ?? "").split(".");
    if (columns.some((column) => column.field === field && column.headerSort !== false) && /^(asc|desc)$/.test(direction)) table.setSort(field, direction);
    else if (sort) table.clearSort();
    compare();
    if (location.hash.includes("=")) document.getElementById(one ? "table" : "rankings").scrollIntoView({ behavior: "instant" });
    if (one) {
      await table.setPageToRow(one.id);
      table.getRow(one.id).getElement().scrollIntoView({ behavior: "instant" });
    }
  }
  function save(kind) {
    const flat = table.getData("active").map((row) => ({
      dataset: rankings[row.ranking][1], unit: rankings[row.ranking][2], source: row.ours ? "ran here" : row.where, group: groups[row.group],
      place: row.place, method: row.label, budget: row.budgetText, basis: row.basis, proven: plain(row.provenCell), audited: plain(row.auditedCell),
      "1 in 100": plain(row.riskCell), accuracy: row.accuracy, low: row.low, high: row.high, ...Object.fromEntries(labels.map((label, i) => [label, plain(row.details[i])])),
    }));
    // An apostrophe keeps spreadsheets from running a text as a formula.
    const quoted = (value) => `"${String(value ?? "").replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;
    const lines = () => [Object.keys(flat[0] ?? {}), ...flat.map(Object.values)].map((line) => line.map(quoted).join(",")).join("\n");
    const text = kind === "json" ? JSON.stringify(flat, null, 1) : lines();
    const address = URL.createObjectURL(new Blob([text], { type: kind === "json" ? "application/json" : "text/csv" }));
    make("a", { href: address, download: `leaderboard.${kind}` }).click();
    setTimeout(() => URL.revokeObjectURL(address));
  }

  table.on("tableBuilt", () => {
    document.querySelector(".tabulator-tableholder").setAttribute("role", "rowgroup");
    document.querySelector(".tabulator-table").setAttribute("role", "presentation");
    form.hidden = false;
    // autoResize would also draw all rows again when one opens and the table gets higher: its button would lose the focus.
    const size = () => `${table.element.clientWidth} ${innerHeight}`;
    let before = size();
    const resized = () => {
      if (before === size()) return;
      before = size();
      table.redraw(true);
    };
    addEventListener("resize", resized);
    new ResizeObserver(resized).observe(table.element);
    restore();
    form.addEventListener("input", () => { update(); store(); });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => {
      const { value } = form.elements.dataset;
      setTimeout(() => {
        form.elements.dataset.value = value; // clears the filters, not the ranking
        if (sort) table.clearSort();
        update();
        store();
      });
    });
    addEventListener("hashchange", () => { if (location.hash.includes("=")) restore(); });
    for (const button of form.querySelectorAll("[data-save]")) button.addEventListener("click", () => save(button.dataset.save));
    const cite = document.getElementById("cite");
    cite.addEventListener("click", () => copyTo(cite, location.href, () => prompt("Address of this view", location.href)));
  });
  // Groups are bands of proven epsilon in our order; other sort orders have no groups.
  table.on("dataSorted", (sorters) => {
    const now = sorters.map(({ field, dir }) => `${field}.${dir}`)[0] ?? "";
    if (now === sort) return;
    if (!now !== !sort) setTimeout(() => table.setGroupBy(now ? false : "heading"));
    sort = now;
    store();
  });
  table.on("rowClick", (event, line) => {
    if (event.target.closest("a, label, input, .more")) return;
    const { id } = line.getData();
    if (!open.delete(id)) open.add(id);
    dress(line);
  });
  document.addEventListener("change", ({ target }) => {
    const id = target.dataset?.compare;
    if (!id) return;
    if (!compared.delete(id)) compared.add(id);
    if (compared.size > 2) compared.delete([...compared][1]);
    compare();
    store();
  });
})();
