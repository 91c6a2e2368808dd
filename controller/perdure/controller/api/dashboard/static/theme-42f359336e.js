var e=localStorage.getItem("perdure.theme");(e==="light"||e==="dark")&&(document.documentElement.dataset.theme=e);
