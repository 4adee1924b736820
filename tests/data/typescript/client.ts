import createClient from "openapi-fetch";
import type { components, paths } from "./schema.d.ts";

declare const process: { argv: string[] };
const [base, token] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: base, headers: { authorization: `Bearer ${token}` } });

const step: components["schemas"]["RouteBody"] = { run_id: "r", workflow: "w", role: "r", step: "both", goal: "from TypeScript" };
const routed = await client.POST("/v1/route", { body: step, params: { header: { "Idempotency-Key": "ts-1" } } });
if (routed.error) throw new Error(`${routed.error.code}: ${routed.error.detail}`);
const bundles: string[] = routed.data.bundles.map((chosen) => chosen.id);
const path = { run_id: "r" };
const shown = await client.GET("/v1/runs/{run_id}/tools", { params: { path, query: { format: "anthropic" } } });
const called = await client.POST("/v1/runs/{run_id}/call", {
  params: { path },
  body: { tool: "kit.echo", arguments: { text: "hello" } },
});
const refused = await client.GET("/v1/runs/{run_id}/tools", { params: { path: { run_id: "none" } } });
console.log(
  JSON.stringify({
    bundles,
    tools: shown.data?.tools.length,
    text: called.data?.text,
    outcome: called.data?.outcome,
    code: refused.error?.code,
  }),
);
