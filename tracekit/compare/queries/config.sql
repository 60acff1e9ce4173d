-- Which settings did the engine run with, and how are they known?
--
-- name      vLLM's flag
-- value     its value, as text
-- origin    logged, given, inferred or default
-- found_at  where it stands
SELECT name, value, origin, found_at
FROM config
ORDER BY name
