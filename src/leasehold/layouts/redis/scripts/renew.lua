-- Sets the lease of a holder to full length, with commands that are allowed when memory is full.
-- ARGV  1 id  2 lease ms
-- Reply 1 held, 0 gone
if holder(ARGV[1]) ~= ARGV[1] then return 0 end
renew_hold(ARGV[1], ARGV[2])
return 1
