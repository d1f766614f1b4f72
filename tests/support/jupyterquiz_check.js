// Runs jupyterquiz's own scripts (given as arguments) on pairs of a question and a typed text, with just enough of a page.
const fs = require("fs");
const vm = require("vm");

const feedback = { innerHTML: "", className: "", style: {}, dataset: {}, parentElement: { parentElement: { id: "" } } };
feedback.classList = { add: (name) => (feedback.className += " " + name) };
const page = {
  console: { log() {}, error() {} },
  document: { getElementById: (id) => (id.startsWith("fb") ? feedback : null) },
};
vm.createContext(page);
vm.runInContext(process.argv.slice(2).map((path) => fs.readFileSync(path, "utf8")).join("\n"), page);

const results = JSON.parse(fs.readFileSync(0, "utf8")).map(([question, typed]) => {
  const field = { id: "q-0", value: typed, dataset: { answers: JSON.stringify(question.answers) }, className: "" };
  field.classList = { add() {} };
  field.blur = () => {};
  field.closest = () => null;
  const check = question.type === "numeric" ? page.check_numeric : page.check_string;
  check(field, { keyCode: 13 });
  return [feedback.className.split(" ").includes("correct"), feedback.innerHTML];
});
process.stdout.write(JSON.stringify(results));
