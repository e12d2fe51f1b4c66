"""Pages for people: the fleet, its nodes, jobs, incidents and recoveries, as they are now.

It reads by the functions of the API's routes and acts through those routes alone: its script sends the same requests as
any other client. `routes` serves pages, `live` keeps them up to date, the view models are pure.
"""
