import { render } from "preact";
import { useEffect } from "preact/hooks";
import { keepSignedIn, offered, signInFromAddress, signedIn } from "./core/api";
import { startKeyboard } from "./core/keyboard";
import { startLive } from "./core/live";
import { startMe } from "./core/me";
import { address, go, startRouter } from "./core/router";
import { ClusterPage, ClustersPage } from "./pages/clusters";
import { ControllersPage } from "./pages/controllers";
import { JobPage } from "./pages/job";
import { JobsPage } from "./pages/jobs";
import { LaunchPage } from "./pages/launch";
import { LoginPage, hasLoginRequest, keepLoginRequest } from "./pages/login";
import { MarketPage } from "./pages/market";
import { NodesPage } from "./pages/nodes";
import { SavingsPage } from "./pages/savings";
import { ServiceForm } from "./pages/service_form";
import { ServicePage, ServicesPage } from "./pages/services";
import { SchedulesPage } from "./pages/schedules";
import { SweepPage } from "./pages/sweep";
import { UsersPage } from "./pages/users";
import { Empty } from "./parts/basics";
import { ConfirmSignIn, Shell, SignInPage } from "./parts/shell";

const PAGES = {
  "/": ["Jobs", JobsPage],
  "/jobs": ["Jobs", JobsPage],
  "/launch": ["Launch", LaunchPage],
  "/market": ["Market", MarketPage],
  "/savings": ["Savings", SavingsPage],
  "/nodes": ["Nodes", NodesPage],
  "/controllers": ["Controllers", ControllersPage],
  "/clusters": ["Clusters", ClustersPage],
  "/services": ["Services", ServicesPage],
  "/schedules": ["Schedules", SchedulesPage],
  "/users": ["Users", UsersPage],
  "/login": ["Sign in", LoginPage],
} as const;

let problem: string | null = null;

function App() {
  const { path, query } = address.value;
  const form = path === "/launch" ? query.get("service") : null;
  const job = /^\/jobs\/(\d+)$/.exec(path);
  const cluster = /^\/clusters\/([^/]+)$/.exec(path)?.[1];
  const sweep = /^\/sweeps\/(\d+)$/.exec(path)?.[1];
  const service = /^\/services\/([^/]+)$/.exec(path)?.[1];
  const page = PAGES[path as keyof typeof PAGES];
  const named = cluster ?? service ?? (sweep && `Sweep ${sweep}`);
  useEffect(() => {
    if (page) document.title = `${page[0]} · Perdure`;
    else if (named) document.title = `${decodeURIComponent(named)} · Perdure`;
  }, [page, named]);
  if (offered.value) return <ConfirmSignIn {...offered.value} />;
  if (signedIn.value === false) return <SignInPage problem={problem} />;
  const Page = page?.[1];
  return (
    <Shell>
      {form !== null ? (
        <ServiceForm key={form} name={form} />
      ) : job ? (
        <JobPage key={path} id={Number(job[1])} />
      ) : cluster ? (
        <ClusterPage key={path} name={decodeURIComponent(cluster)} />
      ) : service ? (
        <ServicePage key={path} name={decodeURIComponent(service)} />
      ) : sweep ? (
        <SweepPage key={path} id={Number(sweep)} />
      ) : Page ? (
        <Page />
      ) : (
        <Empty title="There is no such page">
          <a href="/jobs">All jobs</a>
        </Empty>
      )}
    </Shell>
  );
}

async function start(): Promise<void> {
  startRouter();
  startKeyboard();
  keepLoginRequest();
  problem = await signInFromAddress();
  if (hasLoginRequest()) go("/login", true);
  if (address.value.path === "/") go("/jobs", true);
  // The first page reads its data at once, and learns from the answer whether it is signed in.
  render(<App />, document.getElementById("app") as HTMLElement);
  startMe();
  startLive();
  keepSignedIn();
}

addEventListener("hashchange", () => {
  if (location.hash.startsWith("#login=")) void signInFromAddress();
});
void start();
