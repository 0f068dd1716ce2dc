"use strict";
// The page's script: the map of the files (a squarified treemap: Bruls, Huizing, van Wijk 2000), filters, sorting and the theme.
// Text from the image gets onto the page through textContent and attributes only.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const byID = (id) => document.getElementById(id);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];

  function make(tag, className, text) {
    const e = document.createElement(tag);
    if (className) e.className = className;
    if (text !== undefined) e.textContent = text;
    return e;
  }

  const units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
  function size(n) {
    if (n < 1000) return n + " B";
    let u = 0;
    while (n >= 999.95 && u < units.length - 1) { n /= 1000; u++; }
    return n.toFixed(1) + " " + units[u];
  }
  const grouped = new Intl.NumberFormat("en");
  const number = (n) => grouped.format(n).replaceAll(",", "\u202f");
  const count = (n, noun) => number(n) + " " + noun + (n === 1 ? "" : "s");
  function percent(part, whole) {
    const p = whole > 0 ? 100 * part / whole : 0;
    return (p >= 9.95 || p === 0 ? Math.round(p) : p >= 0.1 ? p.toFixed(1) : "<0.1") + " %";
  }
  const order = new Intl.Collator("en", { numeric: true });

  // ---- the tree ----

  const data = JSON.parse(byID("data").textContent);
  const SMALL = data.kinds.length - 1;

  // build makes the tree of a view. A node is { label, path, size, files, kind, layer, kids, parent }; a file has no kids.
  function build(view) {
    const top = group(null, view === "layer" ? "all layers" : view === "package" ? "all packages" : "/", "");
    const sites = data.sites.map((s) => s.split("/"));
    const walk = (dir, names) => {
      for (let i = 0; dir.f && i < dir.f.length; i += 5) {
        add(dir.f[i], dir.f[i + 1], dir.f[i + 2], dir.f[i + 3], dir.f[i + 4], names);
      }
      for (const below of dir.d || []) {
        names.push(below.n);
        walk(below, names);
        names.pop();
      }
    };
    const add = (name, bytes, layer, kind, pkg, names) => {
      let at = top, from = 0;
      if (view === "layer") {
        at = kid(at, "L" + layer, "layer " + (layer + 1) + (data.layers[layer] ? ": " + data.layers[layer] : ""), "layer " + (layer + 1), true);
      }
      if (view !== "directory" && pkg > 0) {
        const site = data.packages[pkg][1];
        const inside = sites[site].every((s, i) => names[i] === s);
        from = inside ? sites[site].length : 0;
        at = kid(at, "P" + pkg, data.packages[pkg][0], data.packages[pkg][0] + " in /" + data.sites[site], true);
      }
      for (let i = from; i < names.length; i++) at = kid(at, "D" + names[i], names[i], "/" + names.slice(0, i + 1).join("/"), false);
      const many = typeof name === "number";
      const prefix = "/" + names.join("/") + (names.length > 0 ? "/" : "");
      at.kids.push({
        label: many ? count(name, "small file") : name, path: many ? "in " + prefix : prefix + name, size: bytes, files: many ? name : 1,
        kind, layer, kids: null, parent: at, many,
      });
    };
    walk(data.tree, []);
    finish(top);
    return top;
  }

  function group(parent, label, path, named) {
    return { label, path, size: 0, files: 0, kind: SMALL, layer: -1, kids: [], parent, named, index: new Map() };
  }

  function kid(at, key, label, path, named) {
    let k = at.index.get(key);
    if (!k) {
      // Names at the top of a view that are no package's are directories: the slash says so.
      k = group(at, named || at.parent ? label : "/" + label, path, named);
      at.index.set(key, k);
      at.kids.push(k);
    }
    return k;
  }

  // finish sums up a node and takes directories together that hold nothing but one directory.
  function finish(node) {
    while (node.parent && node.kids.length === 1 && node.kids[0].kids) {
      const only = node.kids[0];
      if (!node.named) {
        node.label += "/" + only.label;
        node.path = only.path;
      }
      node.kids = only.kids;
      for (const k of node.kids) k.parent = node;
    }
    node.index = null;
    const kinds = new Array(data.kinds.length).fill(0);
    node.layer = -2;
    for (const k of node.kids) {
      if (k.kids) finish(k);
      node.size += k.size;
      node.files += k.files;
      kinds[k.kind] += k.size;
      node.layer = node.layer === -2 || node.layer === k.layer ? k.layer : -1;
    }
    node.kind = kinds.indexOf(Math.max(...kinds));
    node.kids.sort((a, b) => b.size - a.size || order.compare(a.label, b.label));
  }

  // ---- the map ----

  // squarify cuts a rectangle into one for each item, largest first, whose areas are as their sizes and whose sides differ
  // little: rows are filled along the shorter side as long as that makes their worst ratio better.
  function squarify(items, total, x, y, w, h, put) {
    let scale = w * h / total, i = 0;
    while (i < items.length && w > 0 && h > 0) {
      const side = Math.min(w, h);
      let sum = 0, best = Infinity, end = i;
      while (end < items.length) {
        const area = items[end].size * scale, next = sum + area;
        const worst = Math.max(side * side * items[i].size * scale / (next * next), next * next / (side * side * area));
        if (worst > best) break;
        best = worst;
        sum = next;
        end++;
      }
      const thick = sum / side;
      let along = 0;
      for (; i < end; i++) {
        const length = items[i].size * scale / thick;
        if (w >= h) put(items[i], x, y + along, thick, length);
        else put(items[i], x + along, y, length, thick);
        along += length;
      }
      if (w >= h) { x += thick; w -= thick; } else { y += thick; h -= thick; }
    }
  }

  const map = byID("map"), tip = byID("tip"), crumbs = byID("crumbs"), status = byID("files-status");
  const HEAD = 18, GAP = 2, LEAST = 24, LEVELS = 4, MOST = 900; // pixels; square pixels; nested levels; cells
  const ROWS = 12, MOSTROWS = 500;
  const trees = {};
  let current, cells = [], query = "", showAll = false;

  const view = () => document.querySelector("input[name=view]:checked").value;

  // visibleKids are the kids with an area of their own, and one that stands for the smaller ones.
  function visibleKids(node, area) {
    const shown = node.kids.filter((k) => k.size > 0);
    let n = shown.length;
    while (n > 1 && shown[n - 1].size * area / node.size < LEAST) n--;
    if (shown.length - n < 2) return shown;
    const rest = shown.slice(n), sum = (what) => rest.reduce((s, k) => s + k[what], 0);
    return [...shown.slice(0, n), {
      label: count(rest.length, "smaller item"), path: "in " + (node.path || "/"), size: sum("size"), files: sum("files"),
      kind: SMALL, layer: -1, kids: null, parent: node, many: true, hit: sum("hit"), rest: true,
    }];
  }

  function draw() {
    const width = map.clientWidth;
    const height = Math.round(Math.min(Math.max(width * 0.52, 360), 620));
    map.style.height = height + "px";
    cells = [];
    const queue = [{ node: current, x: 0, y: 0, w: width, h: height, level: 0, cell: null }];
    for (const part of queue) nest(part, queue);
    map.replaceChildren(...cells.map(element));
    map.classList.toggle("searching", query !== "");
    if (cells.length > 0) cells[0].element.tabIndex = 0;
    else map.append(make("p", "empty", "There is nothing in it."));
  }

  // nest cuts the inside of a part into cells, and puts those that are directories and large enough into the queue.
  function nest(part, queue) {
    const { node, x, y, w, h, level } = part;
    if (w < 8 || h < 8 || !(node.size > 0)) return;
    const kids = visibleKids(node, w * h);
    if (level > 0 && cells.length + kids.length > MOST) return;
    const siblings = [];
    squarify(kids, node.size, x, y, w, h, (k, cx, cy, cw, ch) => {
      const cell = { node: k, x: cx, y: cy, w: cw, h: ch, level: level + 1, parent: part.cell, kids: [], siblings };
      siblings.push(cell);
      cells.push(cell);
      if (k.kids && k.size > 0 && level + 1 < LEVELS && cw > 70 && ch > 54) {
        queue.push({ node: k, x: cx + GAP, y: cy + HEAD, w: cw - 2 * GAP, h: ch - HEAD - GAP, level: level + 1, cell });
      }
    });
    if (part.cell) part.cell.kids = siblings;
  }

  function element(cell, i) {
    const n = cell.node, framed = cell.kids.length > 0;
    const e = make("div", "cell level-" + cell.level + (framed ? " frame" : " leaf kind-" + n.kind));
    if (n.kids) e.classList.add("zooms");
    if (n.hit > 0) e.classList.add("hit");
    e.style.left = cell.x + "px";
    e.style.top = cell.y + "px";
    e.style.width = Math.max(cell.w, 1) + "px";
    e.style.height = Math.max(cell.h, 1) + "px";
    if (cell.w < 8 || cell.h < 8) e.classList.add("bare");
    if (cell.w > 34 && cell.h > 17) {
      e.classList.add("named");
      const name = make("bdi", "", n.label + (n.kids && !n.named ? "/" : ""));
      if (framed) {
        const bold = make("b");
        bold.append(name);
        e.append(bold, " " + size(n.size));
      } else {
        e.append(name);
        if (cell.h > 36) e.append(make("br"), size(n.size));
        e.classList.toggle("wrapped", cell.h > 56 && cell.w > 66);
      }
    }
    e.setAttribute("role", "treeitem");
    e.setAttribute("aria-level", cell.level);
    e.setAttribute("aria-setsize", cell.siblings.length);
    e.setAttribute("aria-posinset", cell.siblings.indexOf(cell) + 1);
    if (n.kids) e.setAttribute("aria-expanded", framed);
    e.setAttribute("aria-label", [n.label, ...facts(n)].join(", ") + (n.kids ? "; Enter zooms in" : ""));
    e.tabIndex = -1;
    e.dataset.cell = i;
    cell.element = e;
    return e;
  }

  // facts are what the tip says of a node besides its name.
  function facts(n) {
    const list = [size(n.size), percent(n.size, trees[view()].size) + " of all"];
    if (n.kids || n.many) list.push(count(n.files, "file"));
    if (data.layers.length > 0 && n.layer >= 0) list.push("layer " + (n.layer + 1));
    if (!n.many) list.push((n.kids ? "mostly " : "") + data.kinds[n.kind]);
    return list;
  }

  function zoom(node, focus) {
    const before = current;
    current = node;
    showAll = false;
    hideTip();
    draw();
    drawCrumbs();
    drawInside();
    if (!focus) return;
    let from = before;
    while (from && from.parent !== node) from = from.parent;
    const cell = cells.find((c) => c.node === from) || cells[0];
    if (cell) moveTo(cell);
    else map.focus();
  }

  // into is what a click on a cell leads to: the directory, or the one that a file is in.
  function into(n) {
    const to = n.kids ? n : n.parent;
    return to === current ? null : to;
  }

  function drawCrumbs() {
    const list = make("ol");
    const way = [];
    for (let n = current; n; n = n.parent) way.unshift(n);
    for (const n of way) {
      const button = make("button", "link");
      button.type = "button";
      button.append(make("bdi", "", n.label));
      if (n === current) button.setAttribute("aria-current", "location");
      else button.addEventListener("click", () => zoom(n, true));
      const item = make("li");
      item.append(button);
      list.append(item);
    }
    const total = make("li");
    total.append(make("span", "sub", size(current.size) + ", " + count(current.files, "file")));
    list.append(total);
    crumbs.replaceChildren(list);
  }

  // drawInside lists what the map shows, for those who rather read.
  function drawInside() {
    const table = byID("inside"), more = byID("inside-all");
    const kids = current.kids, n = showAll ? Math.min(kids.length, MOSTROWS) : Math.min(kids.length, ROWS);
    table.caption.textContent = "Inside " + (current.path || current.label) + ", the largest first" + (n < kids.length ? ": " + n + " of " + kids.length : "");
    table.tBodies[0].replaceChildren(...kids.slice(0, n).map((k) => {
      const row = make("tr"), name = make("th"), share = make("td", "share"), meter = make("span", "meter"), fill = make("span");
      name.scope = "row";
      if (k.kids) {
        const button = make("button", "link");
        button.type = "button";
        button.append(make("bdi", "", k.label));
        button.addEventListener("click", () => zoom(k, true));
        name.append(button);
      } else name.append(make("bdi", "", k.label));
      fill.style.width = (current.size > 0 ? 100 * k.size / current.size : 0) + "%";
      meter.append(fill);
      meter.title = percent(k.size, current.size);
      share.append(meter, make("span", "hidden", percent(k.size, current.size)));
      row.append(name, make("td", "num", size(k.size)), share, make("td", "num", number(k.files)));
      return row;
    }));
    more.hidden = showAll || kids.length <= ROWS;
    more.textContent = "Show " + (kids.length > MOSTROWS ? "the first " + MOSTROWS : "all " + kids.length);
  }
  byID("inside-all").addEventListener("click", () => { showAll = true; drawInside(); });

  // ---- pointer and keys ----

  const cellOf = (e) => {
    const element = e.target.closest(".cell");
    return element ? cells[Number(element.dataset.cell)] : null;
  };

  map.addEventListener("click", (e) => {
    const cell = cellOf(e);
    if (!cell) return;
    const to = into(cell.node);
    if (to) zoom(to, false);
  });

  function moveTo(cell) {
    for (const c of cells) c.element.tabIndex = -1;
    cell.element.tabIndex = 0;
    cell.element.focus();
  }

  map.addEventListener("keydown", (e) => {
    const cell = cellOf(e);
    if (!cell || e.ctrlKey || e.altKey || e.metaKey) return;
    const place = cell.siblings.indexOf(cell);
    const to = {
      ArrowDown: cell.siblings[place + 1], ArrowUp: cell.siblings[place - 1], ArrowRight: cell.kids[0], ArrowLeft: cell.parent,
      Home: cell.siblings[0], End: cell.siblings.at(-1),
    };
    if (e.key in to) {
      if (to[e.key]) moveTo(to[e.key]);
    } else if (e.key === "Enter" || e.key === " ") {
      if (into(cell.node)) zoom(into(cell.node), true);
    } else if (e.key === "Escape" || e.key === "Backspace") {
      if (current.parent) zoom(current.parent, true);
    } else return;
    e.preventDefault();
  });

  function showTip(cell, x, y) {
    const n = cell.node;
    tip.replaceChildren(make("b", "", n.label), ...(n.path && n.path !== n.label ? [make("span", "", n.path)] : []), make("span", "", facts(n).join(" · ")));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 12)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 10) : y + 18) + "px";
  }
  let told = null; // the cell that has the focus by the keyboard, while the tip tells of it
  function hideTip() { tip.hidden = true; told = null; }
  function tell(cell) {
    const box = cell.element.getBoundingClientRect();
    showTip(cell, box.left, Math.min(box.top + 24, box.bottom));
    told = cell;
  }

  map.addEventListener("pointermove", (e) => {
    const cell = cellOf(e);
    if (cell) showTip(cell, e.clientX, e.clientY);
    else hideTip();
  });
  map.addEventListener("pointerleave", hideTip);
  map.addEventListener("focusin", (e) => {
    const cell = cellOf(e);
    if (!cell || !e.target.matches(":focus-visible")) return;
    tell(cell);
  });
  map.addEventListener("focusout", hideTip);
  addEventListener("scroll", () => told ? tell(told) : hideTip(), { passive: true });

  // ---- search ----

  // search marks every node with the bytes in it that match, and returns the files.
  function search(node, found) {
    if (!node.kids) {
      node.hit = query !== "" && !node.many && node.path.toLowerCase().includes(query) ? Math.max(node.size, 1) : 0;
      if (node.hit > 0) found.push(node);
      return node.hit;
    }
    node.hit = 0;
    for (const k of node.kids) node.hit += search(k, found);
    return node.hit;
  }

  function drawFound() {
    const found = [];
    search(trees[view()], found);
    const table = byID("found");
    table.hidden = found.length === 0;
    status.textContent = query === "" ? "" : found.length === 0 ? "No file is found." :
      count(found.length, "file") + " found, " + size(found.reduce((s, n) => s + n.size, 0)) + (found.length > 50 ? "; the largest 50 are listed" : "");
    found.sort((a, b) => b.size - a.size || order.compare(a.path, b.path));
    table.querySelector("tbody").replaceChildren(...found.slice(0, 50).map((n) => {
      const row = make("tr"), name = make("th"), button = make("button", "link");
      name.scope = "row";
      button.type = "button";
      button.append(make("bdi", "", n.path));
      button.addEventListener("click", () => {
        zoom(n.parent, false);
        const cell = cells.find((c) => c.node === n);
        if (cell) moveTo(cell);
        map.scrollIntoView({ block: "center" });
      });
      name.append(button);
      row.append(name, make("td", "num", size(n.size)), make("td", "", data.layers.length > 0 ? String(n.layer + 1) : "–"));
      return row;
    }));
  }

  let waiting;
  byID("files-search").addEventListener("input", (e) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      query = e.target.value.trim().toLowerCase();
      drawFound();
      draw();
    }, 120);
  });

  function show() {
    const v = view();
    trees[v] ||= build(v);
    drawFound();
    zoom(trees[v], false);
  }
  for (const input of all("input[name=view]")) input.addEventListener("change", show);

  let width = 0;
  new ResizeObserver(() => {
    if (map.clientWidth === width) return;
    width = map.clientWidth;
    draw();
  }).observe(map);
  width = map.clientWidth;
  show();

  // ---- findings ----

  const findings = all(".finding");
  function filterFindings() {
    const severities = new Set(all("#findings input[data-severity]:checked").map((i) => i.dataset.severity));
    const text = byID("findings-search").value.trim().toLowerCase();
    let shown = 0;
    for (const f of findings) {
      f.hidden = !severities.has(f.dataset.severity) || !f.textContent.toLowerCase().includes(text);
      if (!f.hidden) shown++;
    }
    byID("findings-status").textContent = shown === findings.length ? "" : shown + " of " + findings.length + " shown";
  }
  if (byID("findings-search")) {
    byID("findings-search").addEventListener("input", filterFindings);
    for (const input of all("#findings input[data-severity]")) input.addEventListener("change", filterFindings);
    const open = byID("findings-open");
    open.addEventListener("click", () => {
      const to = findings.some((f) => !f.hidden && !f.open);
      for (const f of findings) if (!f.hidden) f.open = to;
      open.textContent = to ? "Close all" : "Open all";
    });
  }

  // ---- tables ----

  for (const table of all("table[data-sortable]")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      if ("fixed" in head.dataset) return;
      const button = make("button", "", head.textContent);
      button.type = "button";
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") === "descending" || (!head.hasAttribute("aria-sort") && !head.classList.contains("num"));
        for (const h of heads) h.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
        const rows = [...table.tBodies[0].rows].sort((a, b) => (up ? 1 : -1) * order.compare(key(a), key(b)));
        table.tBodies[0].append(...rows);
      });
    });
  }
  for (const input of all("input[data-filters]")) {
    input.addEventListener("input", () => {
      const text = input.value.trim().toLowerCase();
      for (const row of byID(input.dataset.filters).tBodies[0].rows) row.hidden = !row.cells[0].textContent.toLowerCase().includes(text);
    });
  }

  // ---- theme, print ----

  const theme = byID("theme"), themes = ["system", "light", "dark"];
  let chosen = 0;
  theme.addEventListener("click", () => {
    chosen = (chosen + 1) % themes.length;
    if (chosen === 0) delete root.dataset.theme;
    else root.dataset.theme = themes[chosen];
    theme.textContent = "Theme: " + themes[chosen];
  });

  // A page on paper has no clicks: everything that is not long is opened.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = findings.filter((f) => !f.open);
    for (const f of opened) f.open = true;
  });
  addEventListener("afterprint", () => {
    for (const f of opened) f.open = false;
  });
})();
