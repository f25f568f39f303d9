// Opens reports in Chromium as people do, on a phone and on a desk, and prints as JSON what was seen.
//
//     node drive.mjs NODE_FOLDER CHROMIUM PICTURES REPORT.html...
import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, executablePath, pictures, ...reports] = process.argv.slice(2);
const require = createRequire(path.join(path.resolve(folder), "package.json"));
const { chromium } = require("playwright-core");
const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf-8");

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const VIEWS = {
  phone: { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, colorScheme: "light" },
  desk: { viewport: { width: 1280, height: 900 }, colorScheme: "dark" },
  "phone-dark": { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, colorScheme: "dark" },
  "desk-light": { viewport: { width: 1280, height: 900 }, colorScheme: "light" },
};

// The listener of everything that should not happen.
function watch(page) {
  const seen = { console: [], requests: [], dialogs: [] };
  page.on("console", (message) => seen.console.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => seen.console.push(`error: ${error}`));
  page.on("dialog", (dialog) => { seen.dialogs.push(dialog.message()); dialog.dismiss(); });
  page.on("request", (request) => {
    if (!/^(file|data):/.test(request.url())) seen.requests.push(request.url());
  });
  return seen;
}

// All that a reader of the page finds in it.
const read = () => ({
  title: document.title,
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  text: document.querySelector("main").textContent,
  images: document.querySelectorAll("img, iframe, object, embed, link, form, input, a[href]:not([href^='#'])").length,
  scripts: document.scripts.length,
  handlers: [...document.querySelectorAll("*")].filter((e) => [...e.attributes].some((a) => /^(on|style$)/.test(a.name))).length,
  ids: [...document.querySelectorAll("[id]")].map((e) => e.id),
  parts: [...document.querySelectorAll("table[id$='-numbers']")].map((table) => ({
    rows: [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => {
      const held = cell.querySelector("data");
      return held ? held.value : cell.textContent.trim();
    })),
    json: document.getElementById(table.id.replace("numbers", "json"))?.textContent ?? null,
  })),
  charts: [...document.querySelectorAll("figure")].map((figure) => ({
    id: figure.id,
    title: figure.querySelector("svg > title").textContent,
    description: figure.querySelector("svg > desc").textContent,
    marks: [...figure.querySelectorAll(".marks > *")].map((m) => m.getAttribute("aria-label") ?? m.textContent),
    stops: figure.querySelectorAll(".marks > [tabindex='0']").length,
    rows: [...figure.querySelectorAll("tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent.trim())),
    size: figure.querySelector("svg").getBoundingClientRect().width,
  })),
});
const tip = () => { const t = document.getElementById("tip"); return t.hidden ? null : t.textContent; };
const fits = () => {
  const box = document.getElementById("tip").getBoundingClientRect();
  return box.left >= 0 && box.right <= document.documentElement.clientWidth;
};

async function use(page, touch) {
  const marks = page.locator(".marks").first().locator("> *");
  const done = {};
  if (touch) {
    await marks.nth(1).tap();
    done.tapped = await page.evaluate(tip);
    done.fits = await page.evaluate(fits);
    return done;
  }
  await marks.nth(1).hover();
  done.hovered = await page.evaluate(tip);
  await page.mouse.move(2, 2);
  done.left = await page.evaluate(tip);
  // By Tab from the top of the page: the contents first, then the first picture.
  await page.evaluate(() => { document.activeElement.blur(); window.scrollTo(0, 0); });
  done.order = [];
  for (let n = 0; n < 12; n++) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(() => {
      const e = document.activeElement;
      return e.closest(".marks") ? "mark" : e.tagName.toLowerCase();
    });
    done.order.push(at);
    if (at === "mark") break;
  }
  done.keys = [];
  for (const key of [null, "ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home", "Escape"]) {
    if (key) await page.keyboard.press(key);
    done.keys.push(await page.evaluate(tip));
  }
  await page.keyboard.press("Tab");
  done.after = await page.evaluate(() => document.activeElement.tagName.toLowerCase());
  return done;
}

// Only against hanging: a busy machine takes its time.
const PATIENCE = 600_000;
async function open(settings) {
  const context = await browser.newContext(settings);
  context.setDefaultTimeout(PATIENCE);
  return context;
}

const browser = await chromium.launch({ executablePath, args: FLAGS, timeout: PATIENCE });
const found = {};
for (const report of reports) {
  const name = path.basename(report, ".html"), own = (found[name] = {});
  const url = pathToFileURL(path.resolve(report)).href;
  for (const [view, settings] of Object.entries(VIEWS)) {
    const context = await open(settings);
    const page = await context.newPage();
    const seen = watch(page);
    await page.goto(url);
    await page.screenshot({ path: path.join(pictures, `${name}-${view}.png`), fullPage: true });
    const at = (own[view] = { ...(await page.evaluate(read)), ...seen });
    if (view !== "phone" && view !== "desk") {
      await context.close();
      continue;
    }
    at.use = await use(page, settings.hasTouch);
    await page.evaluate(() => { for (const one of document.querySelectorAll("details")) one.open = true; });
    at.opened = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    await page.evaluate(axe);
    const judged = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
    at.violations = judged.violations.map((v) => ({ id: v.id, impact: v.impact, nodes: v.nodes.map((n) => n.html.slice(0, 200)) }));
    if (view === "desk") {
      await page.emulateMedia({ media: "print" });
      at.printed = (await page.pdf()).length;
    }
    await context.close();
  }
  const plain = await open({ javaScriptEnabled: false });
  const page = await plain.newPage();
  const seen = watch(page);
  await page.goto(url);
  own.scriptless = { ...(await page.evaluate(read)), ...seen };
  await plain.close();
}
await browser.close();
process.stdout.write(JSON.stringify(found));
