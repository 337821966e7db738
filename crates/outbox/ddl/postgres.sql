-- The outbox: one row for each event, inserted in the transaction that makes the event true.
-- No index serves polling here: a reader of the log does not need it, and every insert would pay for it.
CREATE TABLE IF NOT EXISTS {table} (
    id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- in order of insertion, which is not that of commit
    event_id          uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE,   -- message_id, the same at every repeat
    aggregate_type    text NOT NULL,                                    -- with aggregate_id: what keeps its order
    aggregate_id      text,                                             -- NULL: the event has no order
    aggregate_version bigint,                                           -- header, if any
    event_type        text NOT NULL,                                    -- the message's type
    payload           jsonb NOT NULL,                                   -- the message's body, as PostgreSQL prints it
    headers           jsonb,                                            -- further headers, a JSON object
    routing_key       text,                                             -- in place of the routing key template, if any
    trace_id          text,                                             -- header, copied
    traceparent       text,                                             -- header, copied: W3C trace context
    status            text NOT NULL DEFAULT 'NEW',                      -- this and the next five: the polling relay's
    retry_count       integer NOT NULL DEFAULT 0,                       -- failed attempts so far
    next_retry_at     timestamptz,                                      -- not before
    locked_by         text,                                             -- who is sending it
    locked_until      timestamptz,                                      -- when somebody else may
    created_at        timestamptz NOT NULL DEFAULT now(),               -- when the event occurred
    sent_at           timestamptz,                                      -- when the broker confirmed it to the polling relay
    last_error        text,                                             -- why the last attempt failed
    -- A row that no message can be made of is refused here, where its writer still hears of it: AMQP's names have
    -- at most 255 bytes, and the default routing key is aggregate_type.event_type.
    CHECK (jsonb_typeof(headers) = 'object'),
    CHECK (octet_length(routing_key) <= 255),
    CHECK (octet_length(aggregate_type) + octet_length(event_type) <= 254)
);
