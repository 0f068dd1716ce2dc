// Looks at a page of `sconce inspect --html` as a person would, in Chromium.
//
//   node report.mjs PLAYWRIGHT CHROMIUM PAGE
//
// PLAYWRIGHT is a directory with node_modules/playwright-core. What is wrong is an exception and an exit code that is not 0.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [playwright, executablePath, file] = process.argv.slice(2);
const { chromium } = createRequire(resolve(playwright) + "/")("playwright-core");
const url = pathToFileURL(resolve(file)).href;

// Chromium refuses to run as root with its sandbox, and containers have none to give.
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
const problems = [];

// open opens the page. Every message, error, dialog and request besides that for the page itself is a problem.
async function open(options) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 900 }, ...options });
  const page = await context.newPage();
  page.on("console", (m) => problems.push("console: " + m.text()));
  page.on("pageerror", (e) => problems.push("error: " + e.message));
  page.on("dialog", (d) => { problems.push("dialog: " + d.message()); return d.dismiss(); });
  page.on("request", (r) => { if (r.url() !== url) problems.push("request: " + r.url()); });
  await page.goto(url);
  return page;
}

const tests = {
  async "the map shows all bytes"() {
    const page = await open();
    for (const view of ["layer", "package", "directory"]) {
      await page.locator(`label:has(input[value=${view}])`).click();
      const { cells, tree, map } = await page.evaluate(() => {
        const data = JSON.parse(document.getElementById("data").textContent);
        const files = (d) => [...(d.f || []), ...(d.d || []).flatMap(files)];
        const flat = files(data.tree);
        const box = document.getElementById("map").getBoundingClientRect();
        return {
          map: box.width * box.height,
          tree: {
            all: flat.reduce((s, v, i) => s + (i % 5 === 1 ? v : 0), 0),
            layers: new Set(flat.filter((v, i) => i % 5 === 2 && flat[i - 1] > 0)).size,
            top: (data.tree.d || []).length + (data.tree.f || []).length / 5,
          },
          cells: [...document.querySelectorAll("#map [aria-level='1']")].map((c) => {
            const b = c.getBoundingClientRect();
            return { area: b.width * b.height, label: c.getAttribute("aria-label"), x: b.x, y: b.y, right: b.right, bottom: b.bottom };
          }),
        };
      });
      if (view === "layer") assert.equal(cells.length, tree.layers, "a cell for each layer with bytes");
      if (view === "directory") assert.equal(cells.length, tree.top, "a cell for each name in the root");
      const area = cells.reduce((s, c) => s + c.area, 0);
      assert.ok(Math.abs(area / map - 1) < 0.01, `by ${view} the cells fill ${area} of ${map}`);
      for (const c of cells) {
        const share = /([\d.]+) % of all/.exec(c.label);
        if (share) assert.ok(Math.abs(c.area / map - share[1] / 100) < 0.015, `${c.label} has ${100 * c.area / map} % of the map`);
        for (const o of cells) {
          const over = Math.min(c.right, o.right) - Math.max(c.x, o.x), under = Math.min(c.bottom, o.bottom) - Math.max(c.y, o.y);
          assert.ok(o === c || over < 1 || under < 1, `${c.label} overlaps ${o.label}`);
        }
      }
    }
  },

  async "the mouse zooms in and out"() {
    const page = await open();
    await page.locator("label:has(input[value=directory])").click();
    const crumbs = page.locator("#crumbs button");
    assert.deepEqual(await crumbs.allTextContents(), ["/"]);
    const data = page.locator("#map .frame", { hasText: "/data" }).first();
    await data.hover({ position: { x: 20, y: 8 } });
    assert.match(await page.locator("#tip").textContent(), /\/data.*4\.5 MB.*8 files/);
    await data.click({ position: { x: 20, y: 8 } });
    assert.deepEqual(await crumbs.allTextContents(), ["/", "/data"]);
    assert.match(await page.locator("#inside caption").textContent(), /^Inside \/data/);
    await page.locator("#inside button", { hasText: "deep" }).click();
    assert.deepEqual(await crumbs.allTextContents(), ["/", "/data", "deep/er"]);
    await crumbs.first().click();
    assert.deepEqual(await crumbs.allTextContents(), ["/"]);
  },

  async "the keyboard does the same"() {
    const page = await open();
    await page.locator("input[value=package]").focus();
    await page.keyboard.press("ArrowRight"); // to the next view
    assert.ok(await page.locator("input[value=directory]").isChecked());
    await page.locator("#crumbs button").last().focus();
    await page.keyboard.press("Tab");
    const label = () => page.evaluate(() => document.activeElement.getAttribute("aria-label"));
    const level = () => page.evaluate(() => document.activeElement.getAttribute("aria-level"));
    const first = await label();
    assert.equal(await level(), "1");
    assert.ok(await page.locator("#tip").isVisible(), "the tip is there for the keyboard");
    await page.keyboard.press("ArrowDown");
    assert.notEqual(await label(), first);
    await page.keyboard.press("Home");
    assert.equal(await label(), first);
    await page.keyboard.press("ArrowRight");
    assert.equal(await level(), "2");
    await page.keyboard.press("ArrowLeft");
    await page.keyboard.press("Enter");
    assert.equal(await page.locator("#crumbs button").count(), 2);
    await page.keyboard.press("Escape");
    assert.equal(await page.locator("#crumbs button").count(), 1);
    assert.equal(await label(), first, "the focus is where it came from");
    await page.keyboard.press("Tab"); // and out again
    assert.equal(await level(), null);
  },

  async "files are found"() {
    const page = await open();
    await page.locator("#files-search").fill("FOUR");
    await page.locator("#files-status", { hasText: "1 file found, 400.0 kB" }).waitFor();
    assert.equal(await page.locator("#found tbody tr").count(), 1);
    assert.ok(await page.locator("#map .leaf.hit").count() === 1);
    await page.locator("#found button").click();
    assert.match(await page.evaluate(() => document.activeElement.getAttribute("aria-label")), /^four\.bin, 400\.0 kB/);
    await page.locator("#files-search").fill("no such file");
    await page.locator("#files-status", { hasText: "No file is found." }).waitFor();
    await page.locator("#files-search").fill("");
    await page.locator("#map:not(.searching)").waitFor();
  },

  async "findings and packages are filtered, tables sorted"() {
    const page = await open();
    const findings = page.locator(".finding:visible");
    const total = await findings.count();
    assert.ok(total >= 2);
    assert.ok(await page.locator(".finding.error[open]").count() > 0, "errors are open");
    await page.locator("input[data-severity=error]").uncheck();
    assert.equal(await page.locator(".finding.error:visible").count(), 0);
    assert.match(await page.locator("#findings-status").textContent(), /shown/);
    await page.locator("input[data-severity=error]").check();
    await page.locator("#findings-search").fill("driver-stubs");
    assert.equal(await findings.count(), 1);
    await page.locator("#findings-search").fill("");
    assert.equal(await findings.count(), total);
    await page.locator("input[data-filters]").fill("torch");
    assert.deepEqual(await page.locator("#packages-table tbody tr:visible th").allTextContents(), ["torch"]);
    const numbers = async () => (await page.locator("#layers tbody tr th").allTextContents()).map(Number);
    assert.deepEqual(await numbers(), [1, 2]);
    await page.locator("#layers thead button").first().click();
    assert.deepEqual(await numbers(), [2, 1]);
    assert.equal(await page.locator("#layers thead th").first().getAttribute("aria-sort"), "descending");
  },

  async "every text can be read, light and dark"() {
    for (const scheme of ["light", "dark"]) {
      const page = await open({ colorScheme: scheme });
      await page.evaluate(() => { for (const d of document.querySelectorAll("details")) d.open = true; });
      const bad = await page.evaluate(contrasts);
      assert.deepEqual(bad, [], scheme);
      await page.locator("#theme").click(); // system to light
      if (scheme === "dark") {
        assert.deepEqual(await page.evaluate(contrasts), [], "light by choice");
        const background = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
        const light = await background();
        await page.locator("#theme").click();
        assert.notEqual(await background(), light, "the toggle does nothing");
        assert.match(await page.locator("#theme").textContent(), /dark/);
      }
    }
  },

  async "a narrow window does not scroll sideways"() {
    for (const width of [380, 720]) {
      const page = await open({ viewport: { width, height: 800 } });
      await page.evaluate(() => { for (const d of document.querySelectorAll("details")) d.open = true; });
      const inner = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(inner <= width, `${inner} pixels in a window of ${width}`);
      assert.ok(await page.locator("#map .cell").count() > 3);
    }
  },

  async "names of files are text"() {
    const page = await open();
    const text = await page.locator("#data").textContent();
    assert.ok(text.includes("x onerror=alert"), "the file is in the image");
    assert.equal(await page.locator("img, iframe, object, script[src], link, base, form").count(), 0);
    assert.equal(await page.locator("script").count(), 2);
    await page.locator("label:has(input[value=directory])").click();
    await page.locator("#inside button", { hasText: "/data" }).click();
    const names = (await page.locator("#inside tbody th").allTextContents()).join("\n");
    assert.ok(names.includes("right\\u{202e}left\\u{a}\\xff.bin"), names);
    assert.ok(names.includes("<\u2044script><img src=x onerror=alert(2)>"), names);
    await page.locator("#files-search").fill("onerror=alert(1)");
    await page.locator("#files-status", { hasText: "1 file found" }).waitFor();
    assert.equal(await page.locator("#found tbody th").textContent(), "/data/</script><img src=x onerror=alert(1)>");
    assert.match(await page.title(), /sconce report/);
    await page.evaluate(() => { // what an injected element would do
      const s = document.createElement("script");
      s.textContent = "window.broken = true";
      document.body.append(s);
      const i = document.createElement("img");
      i.src = "https://example.org/x.png";
      document.body.append(i);
    });
    await page.waitForTimeout(100);
    assert.equal(await page.evaluate(() => window.broken), undefined, "the policy lets scripts in");
    const refused = problems.filter((p) => /Content Security Policy/.test(p));
    assert.ok(refused.length >= 2, "the policy refuses nothing: " + problems.join("; "));
    problems.length = 0;
  },

  async "it can be printed"() {
    const page = await open();
    await page.emulateMedia({ media: "print" });
    assert.equal(await page.locator("#theme:visible, #findings-search:visible").count(), 0);
    assert.ok((await page.pdf({ format: "A4" })).length > 10_000);
  },
};

// contrasts returns the texts whose contrast with what is behind them is too low (WCAG 2.2, 1.4.3: 4.5).
function contrasts() {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const bad = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !e.checkVisibility() || e.closest("script, style, svg, option, .hidden, .skip")) continue;
    let behind = [255, 255, 255, 1];
    for (let b = e; b; b = b.parentElement) {
      const c = rgba(getComputedStyle(b).backgroundColor);
      if (c[3] === 1) { behind = c; break; }
    }
    const style = getComputedStyle(e);
    const [hi, lo] = [luminance(rgba(style.color)), luminance(behind)].sort((a, b) => b - a);
    const ratio = (hi + 0.05) / (lo + 0.05);
    if (ratio < 4.5) bad.add(`${e.tagName}.${e.className}: ${style.color} on ${behind}: ${ratio.toFixed(2)}`);
  }
  return [...bad];
}

let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
    assert.deepEqual(problems, []);
  } catch (e) {
    failed++;
    console.log(`FAILED: ${name}\n${e.stack}\n`);
  }
  problems.length = 0;
  for (const c of browser.contexts()) await c.close();
}
await browser.close();
process.exit(failed === 0 ? 0 : 1);
