// Builds the dashboard into the package of the controller: one script, one style sheet, the theme script, the page.
// The same sources give the same bytes: nothing here depends on the time, on paths or on the machine.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "../controller/perdure/controller/api/dashboard/static");
const MAX_SCRIPT_BYTES = 60 * 1024; // compressed, all scripts together
const MAX_STYLE_BYTES = 12 * 1024;

const options = {
  absWorkingDir: here,
  bundle: true,
  minify: true,
  write: false,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  charset: "utf8",
  define: { "process.env.NODE_ENV": '"production"' },
};

async function bundle(entry) {
  const { outputFiles } = await build({ ...options, entryPoints: [entry], outdir: "out" });
  return outputFiles[0].contents;
}

const files = new Map();
function add(stem, suffix, contents) {
  const digest = createHash("sha256").update(contents).digest("hex").slice(0, 10);
  const name = `${stem}-${digest}${suffix}`;
  files.set(name, contents);
  return name;
}

const script = add("app", ".js", await bundle("src/main.tsx"));
const theme = add("theme", ".js", await bundle("src/theme.ts"));
const style = add("app", ".css", await bundle("src/style/index.css"));
const icon = add("icon", ".svg", readFileSync(join(here, "src/icon.svg")));
const page = readFileSync(join(here, "src/index.html"), "utf8")
  .replace("{{script}}", `/assets/${script}`)
  .replace("{{theme}}", `/assets/${theme}`)
  .replace("{{style}}", `/assets/${style}`)
  .replace("{{icon}}", `/assets/${icon}`);
files.set("index.html", Buffer.from(page));

const size = (suffix) =>
  [...files].filter(([name]) => name.endsWith(suffix)).reduce((sum, [, data]) => sum + gzipSync(data, { level: 9 }).length, 0);
const [scripts, styles] = [size(".js"), size(".css")];
if (scripts > MAX_SCRIPT_BYTES || styles > MAX_STYLE_BYTES) {
  console.error(`too large: scripts ${scripts} of ${MAX_SCRIPT_BYTES} bytes, styles ${styles} of ${MAX_STYLE_BYTES}, compressed`);
  process.exit(1);
}
mkdirSync(target, { recursive: true });
for (const name of readdirSync(target)) rmSync(join(target, name));
for (const [name, contents] of files) writeFileSync(join(target, name), contents);
// What the files were made of: a test compares it with the sources, also on machines without node.
const sources = createHash("sha256");
function visit(folder) {
  for (const entry of readdirSync(join(here, folder), { withFileTypes: true }).sort((a, b) => (a.name < b.name ? -1 : 1))) {
    const path = `${folder}/${entry.name}`;
    if (entry.isDirectory()) visit(path);
    else sources.update(`${path}\0`).update(readFileSync(join(here, path))).update("\0");
  }
}
visit("src");
for (const name of ["build.mjs", "package-lock.json", "package.json"]) sources.update(`${name}\0`).update(readFileSync(join(here, name))).update("\0");
writeFileSync(join(target, "sources.sha256"), `${sources.digest("hex")}\n`);
console.log(`scripts ${(scripts / 1024).toFixed(1)} KiB, styles ${(styles / 1024).toFixed(1)} KiB (compressed)`);
