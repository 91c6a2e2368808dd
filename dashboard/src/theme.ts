// Runs before the first paint, so that the page does not flash in the wrong colors.
const theme = localStorage.getItem("perdure.theme");
if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
export {};
