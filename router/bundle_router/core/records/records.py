"""Names that moved: import them from `decision_record`, `call_records` and `recorded_catalog`."""

from __future__ import annotations

from bundle_router.core.records.call_records import CALL_SCHEMA as CALL_SCHEMA
from bundle_router.core.records.decision_record import (
    DECISION_SCHEMA as DECISION_SCHEMA,
)
from bundle_router.core.records.decision_record import activation_from as activation_from
from bundle_router.core.records.decision_record import activation_json as activation_json
from bundle_router.core.records.decision_record import decision_from as decision_from
from bundle_router.core.records.decision_record import facts_from as facts_from
from bundle_router.core.records.decision_record import facts_json as facts_json
from bundle_router.core.records.decision_record import input_digest as input_digest
from bundle_router.core.records.decision_record import model_from as model_from
from bundle_router.core.records.decision_record import outcome_json as outcome_json
from bundle_router.core.records.decision_record import reply_from as reply_from
from bundle_router.core.records.decision_record import reply_json as reply_json
from bundle_router.core.records.decision_record import search_from as search_from
from bundle_router.core.records.decision_record import search_json as search_json
from bundle_router.core.records.decision_record import step_from as step_from
from bundle_router.core.records.decision_record import step_json as step_json
from bundle_router.core.records.recorded_catalog import catalog_from as catalog_from
