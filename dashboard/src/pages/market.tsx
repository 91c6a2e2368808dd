// Offers by zone: prices, what is avoided until when and why.
import { useRef } from "preact/hooks";
import { clockTime, count, duration, money, percent, place, plural, savedShare, seconds } from "../core/format";
import { now, useLive } from "../core/live";
import { address, go, withQuery } from "../core/router";
import { Ago, Empty, ErrorBox } from "../parts/basics";
import type { MarketOffer, MarketTable } from "../types";

const FILTERS: [string, string][] = [
  ["accelerator", "Accelerator, such as A100"],
  ["cloud", "Cloud"],
  ["region", "Region"],
  ["instance_type", "Machine type"],
];

export function MarketPage() {
  const { query } = address.value;
  const asked = new URLSearchParams();
  for (const [name] of FILTERS) if (query.get(name)) asked.set(name, query.get(name) as string);
  const { data, error } = useLive<MarketTable>(`/market?${asked}`, () => true, 5000, 30_000);
  const timer = useRef(0);
  const filter = (name: string, value: string) => {
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => go(withQuery({ [name]: value.trim() }), true), 250);
  };
  const avoided = (data?.avoided ?? []).filter((one) => seconds(one.until) > now.value);
  return (
    <>
      <div class="head">
        <h1>Market</h1>
      </div>
      <div class="filters">
        {FILTERS.map(([name, hint]) => (
          <input key={name} type="search" class="search narrow" data-search={name === "accelerator" ? true : undefined} aria-label={hint} placeholder={hint} defaultValue={query.get(name) ?? ""} onInput={(event) => filter(name, event.currentTarget.value)} />
        ))}
        {avoided.length > 0 && <a href="#avoided">{plural(avoided.length, "offer")} avoided now</a>}
      </div>
      <ErrorBox error={error} />
      {data && !data.offers.length ? (
        <Empty title="No offer matches" />
      ) : (
        <section aria-labelledby="offers">
          <h2 id="offers">Offers</h2>
          <div class="scroll" tabIndex={0} role="region" aria-label="Table of offers">
            <table class="plain">
              <thead>
                <tr>
                  <th>Where</th>
                  <th>Machine</th>
                  <th>Accelerators</th>
                  <th class="num">vCPUs</th>
                  <th class="num">Memory</th>
                  <th class="num">Spot $/h</th>
                  <th class="num">On-demand $/h</th>
                  <th class="num">Cheaper by</th>
                  <th>Spot now</th>
                  <th class="num" title="Machines lost in the last 24 hours">
                    Lost, 24 h
                  </th>
                </tr>
              </thead>
              <tbody>
                {data?.offers.map((offer) => (
                  <tr key={`${offer.cloud} ${offer.zone} ${offer.instance_type}`}>
                    <td>{place(offer)}</td>
                    <td>{offer.instance_type}</td>
                    <td>{offer.accelerators}</td>
                    <td class="num">{offer.vcpus}</td>
                    <td class="num">{count(Math.round(offer.memory_gib))} GiB</td>
                    <td class="num">{offer.spot_per_hour === null ? "–" : money(offer.spot_per_hour)}</td>
                    <td class="num">{offer.on_demand_per_hour === null ? "–" : money(offer.on_demand_per_hour)}</td>
                    <td class="num">{offer.spot_per_hour !== null && offer.on_demand_per_hour !== null ? percent(savedShare(offer.spot_per_hour, offer.on_demand_per_hour)) : ""}</td>
                    <td>
                      <Availability offer={offer} />
                    </td>
                    <td class="num">{offer.lost_in_a_day || ""}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          {data && data.total > data.offers.length && (
            <p class="muted">
              The cheapest {count(data.offers.length)} of {count(data.total)}. Filter to see others.
            </p>
          )}
        </section>
      )}
      {data && Object.keys(data.disabled).length > 0 && (
        <section aria-labelledby="unused">
          <h2 id="unused">Clouds that are not used</h2>
          <dl class="facts column">
            {Object.entries(data.disabled).map(([cloud, why]) => (
              <div key={cloud}>
                <dt>{cloud}</dt>
                <dd>{why}</dd>
              </div>
            ))}
          </dl>
        </section>
      )}
      {avoided.length > 0 && (
        <section aria-labelledby="avoided">
          <h2 id="avoided">Avoided now</h2>
          <div class="scroll" tabIndex={0} role="region" aria-label="Table of avoided offers">
            <table class="plain">
              <thead>
                <tr>
                  <th>Where</th>
                  <th>What</th>
                  <th class="num">For another</th>
                  <th>Since</th>
                  <th>Why</th>
                </tr>
              </thead>
              <tbody>
                {avoided.map((one, index) => (
                  <tr key={index}>
                    <td>{place(one) || "everywhere"}</td>
                    <td>{[one.instance_type ?? "all machines", one.market].filter(Boolean).join(", ")}</td>
                    <td class="num">
                      <span title={`until ${clockTime(one.until, true)}`}>{duration(seconds(one.until) - now.value)}</span>
                    </td>
                    <td>
                      <Ago at={one.since} />
                    </td>
                    <td class="prose">
                      {one.why}
                      {one.code && <span class="part">{one.code}</span>}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </section>
      )}
    </>
  );
}

function Availability({ offer }: { offer: MarketOffer }) {
  if (offer.avoided_until && seconds(offer.avoided_until) > now.value)
    return (
      <span class="status bad" title={offer.avoided_why ?? ""}>
        <span class="sign" aria-hidden="true">
          ✕
        </span>
        avoided for {duration(seconds(offer.avoided_until) - now.value)}
      </span>
    );
  if (offer.last_tried === null) return <span class="muted">not tried yet</span>;
  return (
    <span class={`status ${offer.was_available ? "good" : "wait"}`}>
      <span class="sign" aria-hidden="true">
        {offer.was_available ? "●" : "○"}
      </span>
      {offer.was_available ? "available " : "unavailable "}
      <Ago at={offer.last_tried} />
    </span>
  );
}
